"""What surrounds a question: polite frames, context sentences, system prompts. A sixth is held out of training."""

from __future__ import annotations

FRAMES = {
    "Q": """
Q {}?
Q {}?
Q {}?
Q {}?
Q {}?
Q {}?
Q {}?
Q {}?
Q {}
Q {} please?
Q {}, please?
Q hey, {}?
Q hi, {}?
Q hello, {}?
Q hello! {}?
Q hi there! {}?
Q excuse me, {}?
Q so {}?
Q so, {}?
Q ok, {}?
Q okay, {}?
Q now, {}?
Q well, {}?
Q and {}?
Q please tell me: {}?
Q please, {}?
Q tell me, {}?
Q tell me please, {}?
Q could you tell me: {}?
Q can you tell me: {}?
Q can you help me? {}?
Q quick question: {}?
Q a quick question, {}?
Q question: {}?
Q my question is: {}?
Q my question: {}?
Q I have a question: {}?
Q I have a question. {}?
Q here is my question: {}?
Q one question: {}?
Q next question: {}?
Q another question: {}?
Q one more thing, {}?
Q sorry, but {}?
Q sorry to bother you, {}?
Q answer this: {}?
Q please answer: {}?
Q just curious, {}?
Q I am curious: {}?
Q I wonder, {}?
Q I was wondering, {}?
Q I am not sure, {}?
Q I forgot, {}?
Q let's see, {}?
Q in your opinion, {}?
Q in short, {}?
Q in one word: {}?
Q be honest, {}?
Q dear assistant, {}?
Q dear model, {}?
Q assistant, {}?
Q alright, {}?
Q may I ask, {}?
Q may I ask you something? {}?
Q do you know: {}?
Q guess: {}?
Q quiz: {}?
Q Q: {}?
Q {}, do you think?
Q {}? thanks!
Q {}? thank you.
Q {}? please answer.
Q {}? I need to know.
Q {}? I cannot tell.
Q {}? any idea?
Q {}? be brief.
""",
    "I": """
I {}.
I {}.
I {}.
I {}.
I {}
I please {}.
I please {}.
I please {}
I {}, please.
I {} please
I could you {}?
I can you {}?
I would you {}?
I will you {}?
I could you please {}?
I can you please {}?
I would you please {}?
I could you {} for me?
I can you {} for me?
I can you {}, please?
I I want you to {}.
I I'd like you to {}.
I I would like you to {}.
I I need you to {}.
I I ask you to {}.
I I'd love you to {}.
I your task is to {}.
I your task: {}.
I task: {}.
I your job is to {}.
I go ahead and {}.
I now {}.
I now please {}.
I try to {}.
I please try to {}.
I kindly {}.
I would you kindly {}?
I would you be so kind as to {}?
I would you be able to {}?
I are you able to {}?
I is it possible for you to {}?
I do me a favor and {}.
I do me a favor: {}.
I help me: {}.
I hey, {}.
I hi, please {}.
I hello, can you {}?
I hello! please {}.
I hey, could you {}?
I ok, {}.
I ok, now {}.
I so, {}.
I first, {}.
I next, {}.
I just {}.
I simply {}.
I quickly {}.
I may I ask you to {}?
I might I ask you to {}?
I I'd appreciate it if you could {}.
I it would be great if you could {}.
I it would be nice if you could {}.
I if you can, {}.
I if possible, please {}.
I when you are ready, {}.
I for me, {}.
I let's {}.
I let me see you {}.
I you should {}.
I you must {}.
I assistant, {}.
I dear assistant, please {}.
I {}, will you?
I {}, thanks.
I {}. thank you!
I {} if you can.
I {} as well as you can.
""",
    "E": """
E tell me {}.
E tell me {}.
E tell me {}
E please tell me {}.
E please tell me {}.
E can you tell me {}?
E can you tell me {}?
E could you tell me {}?
E could you please tell me {}?
E can you please tell me {}?
E would you tell me {}?
E would you please tell me {}?
E will you tell me {}?
E do you know {}?
E do you happen to know {}?
E I want to know {}.
E I need to know {}.
E I would like to know {}.
E I'd like to know {}.
E I'd love to know {}.
E I wonder {}.
E I was wondering {}.
E I am wondering {}.
E I am curious {}.
E I am asking {}.
E I am trying to find out {}.
E I don't know {}.
E I cannot tell {}.
E I am not sure {}.
E let me know {}.
E please let me know {}.
E say {}.
E please say {}.
E can you say {}?
E could you say {}?
E can you see {}?
E any idea {}?
E have you any idea {}?
E help me find out {}.
E can you help me find out {}?
E would you mind telling me {}?
E are you able to tell {}?
E are you able to tell me {}?
E can you figure out {}?
E can you find out {}?
E find out {}.
E figure out {}.
E work out {}.
E determine {}.
E check {}.
E look and tell me {}.
E have a look and say {}.
E tell us {}.
E now tell me {}.
E hey, tell me {}.
E hi, can you tell me {}?
E ok, tell me {}.
E just tell me {}.
E I'd be glad to hear {}.
E my question is {}.
E the question is {}.
E it would help me to know {}.
E guess {}.
E write {}.
""",
    "N": """
N {}?
N {}
N {}, please.
N {} please
N tell me {}.
N please tell me {}.
N can you tell me {}?
N could you tell me {}?
N could you please tell me {}?
N what is {}?
N what's {}?
N and what is {}?
N so what is {}?
N give me {}.
N please give me {}.
N can you give me {}?
N could you give me {}?
N would you give me {}?
N could you please give me {}?
N I need {}.
N I want {}.
N I'd like {}.
N I would like {}.
N I'd like to have {}.
N I want to know {}.
N I need to know {}.
N I'd like to know {}.
N I am looking for {}.
N I am interested in {}.
N I am asking for {}.
N let me have {}.
N let me know {}.
N let me hear {}.
N please provide {}.
N provide {}.
N state {}.
N name {}.
N please name {}.
N find {}.
N can you find {}?
N determine {}.
N write down {}.
N report {}.
N do you know {}?
N what would be {}?
N what would you say is {}?
N what do you think is {}?
N hey, what is {}?
N hi, what is {}?
N ok, what is {}?
N question: what is {}?
N may I have {}?
N may I ask for {}?
N how about {}?
N now {}.
N your task: {}.
N wanted: {}.
N output {}.
""",
    "F": """
F {}?
F {}?
F {}?
F {}
F {}
F {}.
F {}, please?
F {}...
""",
    "R": """
F {}
F {}
F {}
F {}.
F {}.
F {}!
F {}!
F {}?
F {}...
F oh, {}
F ah, {}.
F well, {}.
F ok, {}!
F so, {}
F um, {}
F {}, really.
F {} :)
F {}, I say.
F then {}
""",
}

BEFORE_MEDIA = """
F here is a {image}.
F here is my {image}.
F here is the {image}.
F here's a {image} for you.
F this is a {image}.
F this is my {image}.
F I have a {image} here.
F I made this {image} [today|yesterday|for you|myself|with a program].
F I drew this [myself|today|yesterday|for fun|].
F my [daughter|son|friend|brother|sister|teacher|student] [made|drew|sent] this.
F my [daughter|son|friend|colleague] asked me about this {image}.
F look at [this|the] {image}.
F please look at the {image}.
F take a look at this {image}.
F look at this.
F have a look at this.
F I am sending you a {image}.
F I just uploaded a {image}.
F I found this {image} [in a book|online|on my desk|in a folder].
F I have a question about [this|the] {image}.
F a question about the {image}.
F it's about [this|the] {image}.
F see the {image} [above|below|attached|].
F the {image} is attached.
F attached is a {image}.
F consider [this|the] {image}.
F I cannot see [it|the {image}] [well|clearly|myself|].
F I am blind.
F this is for [school|a test|work|a game|my homework|a study].
F check this out.
F I need help with this {image}.
F the {image} was made by a [program|child|friend].
"""
BEFORE_ANY = """
F I am testing [you|this|a model|a new program|the server].
F this is a test.
F I need your help.
F I need some help.
F let's [try|start|begin|go on|play a game].
F I am new here.
F listen carefully.
F I am in a hurry.
F this is important.
F you are [great|helpful|a good assistant].
F I hope you can help.
F good morning.
F good evening.
F hello.
F hi there.
F I am learning English.
F I have a [short|simple|quick] question.
F here is an easy one.
F another one.
F think carefully.
F take your time.
F my name is {name}.
F pay attention.
F don't worry if it is hard.
F I was told you can do this.
"""
AFTER = """
F thanks!
F thank you.
F thanks in advance.
F thank you very much.
F please be brief.
F be precise.
F be exact.
F keep it short.
F answer [briefly|shortly|in one sentence|in a sentence|quickly|in English|with one sentence].
F please answer in one sentence.
F one sentence is enough.
F a short answer is enough.
F no explanation needed.
F don't explain.
F just the answer.
F only the answer, please.
F think before you answer.
F think step by step.
F take your time.
F I am curious.
F I need it for [school|work|my homework|a test].
F I can't see it.
F it is important.
F look closely.
F please look carefully.
F don't guess.
F be honest.
F what do you think?
F you can do it.
F I'll wait.
"""
SYSTEM_PROMPTS = """
F You are [a|my|the] [helpful|friendly|careful|kind|small|polite|smart] [assistant|model|vision model|chatbot].
F You are [a|the] [helpful|friendly|careful] [vision-language model|AI assistant].
F You are a [helpful|friendly|careful] assistant that [sees|understands|describes|looks at] [pictures|images].
F You are a [helpful|careful] [assistant|model]. Answer [briefly|in one sentence|honestly|the question|truthfully].
F You are a [visual|picture|drawing|multimodal] [assistant|expert|analyst].
F You answer questions about [pictures|images|images and videos|drawings].
F You see [images|pictures|drawings] and [answer questions|describe them|talk about them].
F Answer [briefly|shortly|in one sentence|the user's question|the question|concisely|truthfully].
F Answer the user's questions about the [image|picture].
F Be [kind|brief|polite|concise|precise|honest|helpful].
F Help the user.
F Please help the user with [pictures|images|the picture].
F The user will [ask questions|send pictures|show you images]. Answer [them|briefly|politely].
F Look at the [image|picture] [carefully|closely] and answer.
F You are an assistant [for blind people|for children|in a school|of a company].
F You are seesay-demo.
F You are [Bob|Alice|Max|Eva], [an assistant|a robot|a helpful model].
F Respond in [English|one sentence|a few words|plain text].
F Do not invent anything.
F Say only what you see.
F You are a teacher who looks at drawings.
F This is a conversation between a user and [an assistant|a model].
F Never [lie|guess]. Always [be polite|answer|tell the truth].
"""
