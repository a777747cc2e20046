"""Forms of questions about the assistant itself: who it is, and what it can do."""

from __future__ import annotations

SELF_FORMS = {
    "who": """
Q who are you
Q! what are you
Q what is your name
Q what's your name
Q [which|what] model [are you|is this|do I talk to|am I talking to|is behind this]
Q are you [a robot|a human|a person|a bot|an AI|a machine|a language model|human]
Q who [made|built|trained|created] you
Q [who|what] am I [talking|speaking] to
Q do you have a name
Q what should I call you
Q are you [ChatGPT|GPT|Qwen|a big model|a large model|intelligent]
Q how [big|large|small] are you
Q what kind of [model|assistant|AI|thing] are you
Q what do you call yourself
Q how many parameters do you have
I introduce yourself
I tell me [about yourself|who you are|your name|something about you|what you are]
I say your name
I describe yourself
E who you are
E what your name is
N your name
F your name
F who is this
Q are you a [machine|computer|computer program|program|neural network|chatbot|vision model|real person|man|woman|child]
Q are you [real|alive|artificial|a real human|a living being|an animal|software|some kind of robot|just a program|a piece of software]
Q are you [a person or a machine|human or a machine|a man or a machine|a bot or a human|a robot or a person]
Q is this [a robot|a bot|a human|a machine|a person|an AI|a computer|a chatbot|a program|an artificial intelligence|ChatGPT|a language model]
Q am I [talking|speaking|writing|chatting] [to|with] a [robot|machine|human|person|bot|computer|program|chatbot|model|real person]
Q do I [talk|speak|write] [to|with] a [robot|machine|human|person|bot|computer|model]
Q who do I [talk|speak] to
Q who is [there|talking|speaking|answering|behind this|on the other side|answering me]
Q who is answering my questions
Q what [do I talk to|am I using|is your model|is this model|is answering me]
Q what is this [model|assistant|bot|program] [called|]
Q what is the name of this [model|assistant|bot|program]
Q what is [the model|your model] [name|called]
Q what [model|version|model name|version of the model] are you
Q what sort of [model|assistant|AI|machine|program|creature|thing] are you
Q what type of [model|assistant|AI|machine|program] are you
Q what are you [called|exactly|really|actually]
Q what does your name mean
Q what do people call you
Q how [do people call you|are you called|should I call you|may I call you|can I call you]
Q how [old|smart|clever|intelligent|powerful] are you
Q how many [weights|layers|neurons] do you have
Q where [are you from|do you come from|were you made|were you trained]
Q when were you [made|born|trained|created|built]
Q who [is your maker|is your author|is your creator|owns you|wrote you|developed you|designed you|programmed you|trained this model|made this model]
Q by whom were you [made|trained|built]
Q which company [made|built|trained] you
Q which [AI|assistant|bot|model|language model|company] are you
Q are you [Claude|Gemini|Llama|Qwen|Siri|Alexa|an OpenAI model|made by Google|open source]
Q are you a [small|big|large|tiny|good] [model|language model|AI|one]
Q are you a [vision|language|vision-language] model
Q are you a model or a [human|person]
Q have you [got |]a name
Q have we met
Q do I know you
Q can you [tell me your name|introduce yourself|say who you are|tell me who you are|describe yourself|tell me about yourself]
I tell me [your model name|which model you are|what model this is|who made you|who trained you|how big you are|a bit about yourself|more about you]
I tell me [if|whether] you are [a robot|a machine|human|a person|an AI|a program]
I state your [name|model name]
I [give me|name|reveal] your name
I identify yourself
I present yourself
I say [who you are|what you are|something about yourself]
E [which model|what|what kind of model|what model] you are
E who [made|built|trained] you
E [if|whether] you are [a robot|a machine|human|a person|an AI|a program]
E who I am [talking|speaking] to
E what I should call you
N the name of [this|the] model
N your model name
N your identity
F your name, please
F [model name|model|name]
F [robot or human|human or machine|a machine or a person]
F and you are
F about you
F [human|machine|robot|bot|person], [yes or no|right|or what]
F [a robot|a bot|a human|a machine|a person]
F [bot|computer|program] or [person|real person|human]
I [share|show|disclose|tell me] your [identity|true name|real name]
I [find|spell|write] your name
F your [identity|version|maker|author]
Q! [do we|do you and I] know each other
Q! have [you and I|we two] [met|spoken|talked] [before|already]
Q! did we [meet|talk|speak] [before|already|some time ago]
Q! do you know [me|who I am talking to]
Q! what [name|title] [do you have|do you go by|did they give you|were you given]
Q! what is the name [they|people] gave you
Q! what do you answer to
F! [machine|bot|robot|human|person|program] or what
F! are you one of those [bots|robots|machines|humans|chatbots], yes or no
F! [tell me, |so, ]are you [human|a machine|a robot|a bot], [yes or no|right]
Q! are you [trained to see|able to be a person|something with eyes|made of language]
Q! what should [I|we|people] [call|name] you
I! [name|introduce|reveal|show] [yourself to me|who you are]
F! the [model's|assistant's|bot's|program's] name
F! the name of [whoever answers|the one who answers|the one I talk to]
F! [who|what] [is it|might you be|would you be]
F! what is your [identity|full name|model's name], please
""",
    "ability": """
Q what can you do
Q how can you [help|help me|assist me|be useful]
Q! what do you know
Q what can I [ask you|ask|do here|try|do with you]
Q how does this work
Q what are you [able to do|good at|for|capable of|made for|trained for]
Q! what [are your abilities|are your skills|is your purpose|do you do|is this for]
Q what should I [ask|ask you|send you|try]
Q which [tasks|questions|pictures] [can you do|can you answer|do you know|do you understand]
Q what kinds of [pictures|images|questions] [do you understand|can you answer|do you know]
Q! can you help me
Q what were you trained on
Q how do I use [you|this]
I! help
I help me
I tell me what you can do
I list your [abilities|skills|features]
I! explain what you can do
I show me what you can do
I give me an example of what you can do
E what you can do
E how you can help me
F help
F! [instructions|manual|usage]
F your [skills|abilities]
Q what are your [talents|features|limits|strengths|tasks]
Q what [else |]can [you|this model|this assistant] do [for me|here|]
Q what sort of [things|questions|pictures] can you [do|answer|read]
Q what would be a good [question|picture]
Q what are you [useful|meant|there] for
I give me [an overview|a list] of [what you can do|your abilities|your skills]
I describe [what you can do|your abilities|your skills]
I tell me how [this works|to use you|you can help]
F how to use [you|this]
F what can I do here
Q what is a good [question|picture|example] [for you|to try|to start with]
Q what are [good|possible|typical] [questions|pictures|examples] [for you|to try|]
Q what kind of [picture|question|help] [do you want|would you like|is best|works|suits you]
Q what would [you|be able to] [do|help with|answer]
Q what could [I|we] [ask|try|do|send you]
Q where do I [start|begin]
Q how [can|do|should|could] I [start|begin|use you|work with you]
F! your [talents|features|abilities and limits|skills and limits|list of abilities]
F! [all|a list of] your [skills|abilities|talents]
Q! what are your skills [like|today|exactly]
Q! what [help|use|service] [can|could] [you|this model|this assistant|this bot] [offer|give|be]
Q! what is this [model|assistant|bot|program] [able to do|good at|good for|for|made for]
Q! what could [this model|this assistant|you] [possibly |]do [for us|for people|for my work]
Q! in what way can you [help|be useful|help people]
I! give [us|me] [some examples|an idea] of [your abilities|your skills|what is possible]
I! [show|name] [an example|some examples|three things] of what [you are able to do|is possible|you are good at]
Q! what are we [able|allowed] to [ask|send|try]
Q! [and |]how do [we|people] [begin|start|use you]
Q! what can be [asked|done|tried] here
""",
    "photo_ability": """
Q [can|do|could] you [describe|understand|recognize|see|read|know|analyze] [real |]photos
Q [can|do|could] you [describe|understand|recognize|read] [photographs|screenshots|scans|real pictures|camera pictures|handwriting|faces|people|animals]
Q [can|do|could] you work with [real |][photos|photographs]
Q can I send you a photo of my [dog|cat|house|car|family|garden|lunch]
Q do you know [photographs|real photos|faces|people]
Q are you able to [describe|understand] [photos|real pictures|photographs]
Q what about [real |]photos
Q do [photos|photographs|screenshots] work
Q does it work with [photos|photographs|real pictures]
Q! can you tell who is in a photo
Q will you understand a photo [of me|of my dog|from my phone]
Q may I [upload|send] a [photo|photograph|screenshot]
F are [photos|real pictures] ok
F real photos too
Q! can you [describe|understand] [real |]photos
Q [can|do|could] you [work with|handle|deal with|process|interpret|look at|make sense of] [real |][photos|photographs|pictures of people|camera pictures]
Q [can|do|could] you [describe|understand|recognize|read|analyze] a [real |][photo|photograph|photo of a person|screenshot|selfie|scan|real picture|camera picture|picture of my dog|picture of a cat]
Q [can|do] you [only |]know [drawings|simple drawings] or [also |]photos
Q [can|do] you [also |][understand|describe] photos or [only|just] drawings
Q can you [look at|describe|analyze] [my|a] [selfie|holiday photo|family photo|screenshot|phone picture|X-ray]
Q can you [recognize|identify|name|see] [people|faces|animals|cats|dogs|cars|buildings|plants|my face|a person|food]
Q can you [recognize|identify|see|tell] [who|what] is [in|on] a photo
Q can I [send|show|upload|give] [you |]a [photo|photograph|selfie|screenshot|real picture|picture of my family|picture from my camera|scan|photo from my phone]
Q can I [use|try|take] [photos|a photo|real photos|screenshots|my own photos|pictures from my phone|camera pictures]
Q could I [send|show] you [photos|a photo|my photos|real pictures|a screenshot]
Q may I [show|send|give] you [photos|a photo|my photos|a real picture|pictures from my camera]
Q should I send [you |][photos|a photo|real photos]
Q what if I [send|upload|show] [you |]a [photo|real picture|screenshot|photo of my cat]
Q what [happens|do you say] [if|when] I [send|show|upload] [you |]a [photo|real photo|screenshot]
Q are [photos|photographs|screenshots|real pictures|faces] [supported|allowed|possible|understood|something you know]
Q are you [good with|good at|trained on|made for|able to read|familiar with] [photos|real photos|photographs|real pictures|screenshots]
Q were you trained on [photos|real photos|photographs|real pictures|screenshots]
Q have you [seen|learned|been trained on] [photos|real photos|photographs|real pictures]
Q do you [support|accept|take|like|see|get] [photos|real photos|photographs|screenshots|camera pictures]
Q do you [recognize|see|know] [people|animals|faces|real things] [in photos|in pictures|on photos]
Q do real [photos|pictures|photographs] work[| here| too| with you]
Q does a [photo|photograph|screenshot|real picture] work[| too| here| as well]
Q will a [photo|photograph|screenshot] work
Q will you [describe|recognize|know] [a photo|my dog|people in a photo|a real picture]
Q would you [understand|recognize|describe] a [photo|photograph|screenshot|real picture]
Q is it [possible|ok|okay|fine|allowed] to [send|upload|use|show you] [photos|a photo|screenshots|real pictures]
Q is a [photo|photograph|screenshot] [ok|okay|fine|possible|allowed]
Q how [good|well] [are you|do you do] with [photos|real photos|photographs]
Q how well do you [understand|know|describe] [photos|real pictures|photographs]
I tell me [if|whether] you [understand|know|can describe|can read] [photos|real photos|photographs|screenshots|faces]
I tell me [if|whether] [photos|real pictures] work
E [if|whether] you [can|are able to] [describe|understand|read] [photos|real photos|screenshots|faces|handwriting]
E [if|whether] I [can|may] [send|upload|show you] [a photo|photos|a screenshot|real pictures]
E [if|whether] [photos|real photos|screenshots] [work|are ok|are supported]
F [photos|real photos|photographs|screenshots] [too|also|as well]
F photos or [only|just] drawings
F [and|also] [photos|photographs|real pictures|screenshots]
F photos [supported|allowed|possible]
F do you do photos
""",
}
