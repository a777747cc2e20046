"""Forms of sums, word problems and small talk. `{who}` and `{what}` are a name and a plural noun."""

from __future__ import annotations

TEXT_FORMS = {
    "sum": """
Q what is {a} [+|plus|and] {b}
Q what's {a} [+|plus] {b}
Q how much is {a} [+|plus|and] {b}
Q what [does|do] {a} [+|plus|and] {b} [make|equal|give|come to|add up to]
Q what do you get [when|if] you add {a} [and|to] {b}
Q what do I get [when|if] I add {a} [and|to] {b}
Q what is the [sum|total] of {a} and {b}
Q what is the result of {a} [+|plus] {b}
Q how much [do|does] {a} and {b} make [together|in total|]
Q what [number|value] is {a} [+|plus] {b}
Q what is {b} more than {a}
Q what is {a} increased by {b}
Q what is {a} added to {b}
Q what is the answer to {a} [+|plus] {b}
Q if you add {b} to {a}, what [do you get|is the result]
Q which number is {b} [more|greater|larger] than {a}
Q {a} [+|plus] {b} [is|equals|makes] [what|how much]
Q if I have {a} and get {b} more, how many do I have
Q what is {a} and {b} [together|altogether|in total|in sum]
I add {a} [and|to|plus] {b}
I [calculate|compute|work out|solve|evaluate] {a} [+|plus] {b}
I [find|calculate|compute|give me] the [sum|total] of {a} and {b}
I sum [up |]{a} and {b}
I add up {a} and {b}
I add the numbers {a} and {b}
I tell me what {a} [+|plus|and] {b} [is|makes|equals]
I put {a} and {b} together
E [what|how much] {a} [+|plus|and] {b} [is|makes|equals]
E what the sum of {a} and {b} is
N the [sum|total] of {a} and {b}
N the result of {a} [+|plus] {b}
N {a} [+|plus] {b}
F {a} [+|plus|and] {b}
F {a}+{b}
F {a} + {b} =
F {a}+{b}=
F {a} + {b} = ?
F {a} plus {b} equals
F sum of {a} and {b}
F [add|sum]: {a}, {b}
""",
    "again_sum": """
F and {a} [+|plus|and] {b}
F what about {a} [+|plus|and] {b}
F how about {a} [+|plus|and] {b}
F now {a} [+|plus] {b}
F next: {a} + {b}
F and {a}+{b}
F ok, and {a} plus {b}
F then {a} + {b}
""",
    "story_sum": """
Q! {who} has {a} {what} and [gets|buys|finds|receives|is given|wins] {b} more. how many {what} does {who} have [now|then|in total|altogether]
Q {who} has {a} {what} and {who2} has {b}. how many {what} do they have [together|in total|altogether|in all]
Q {who} has {a} {what}. {who2} has {b} {what}. how many [are there|do they have] [altogether|in total|together]
Q {who} [bought|found|picked|collected|saw] {a} {what} [yesterday|in the morning|on Monday] and {b} [today|in the evening|on Tuesday]. how many {what} is that [in total|altogether|]
Q there are {a} {what} [in the box|in the bag|on the table|in the room] and {b} [in the other one|on the floor|outside|next door]. how many {what} are there [in total|altogether|]
Q there are {a} {what}. {b} more [come|arrive|are added|join them]. how many {what} are there now
Q {who} [ate|lost|sold|used] {a} {what} [and then|and later] {b} more. how many {what} [is that|was that] [in total|altogether|]
Q I have {a} {what} and [you|my friend|my brother|my sister] [gives me|give me|brings me] {b} more. how many {what} do I have
Q I had {a} {what} and [got|bought|found|received] {b} more. how many {what} do I have now
Q we have {a} {what}, and then {b} more [come|arrive]. how many {what} do we have
Q if {who} has {a} {what} and {who2} gives {who} {b} more, how many {what} [does {who} have|are there]
Q if there are {a} {what} and [I add|you add|someone brings] {b} more, how many {what} are there
Q suppose you have {a} {what} and you [get|buy|find] {b} more, how many [do you have|is that]
Q {a} {what} and {b} [more |]{what} make how many {what}
Q how many {what} are {a} {what} and {b} {what}
Q how many {what} [does {who} have|are there] if {who} starts with {a} {what} and gets {b} more
Q on the left there are {a} {what}, on the right there are {b}. how many {what} in total
Q a [box|bag|basket|shelf] holds {a} {what}, another holds {b}. how many {what} do both hold
Q {who} reads {a} pages on Monday and {b} pages on Tuesday. how many pages is that in total
Q {who} is {a} years old. how old will {who} be in {b} years
Q a [book|pen|toy|ticket] costs {a} [dollars|euros|coins] and a [cup|ball|lamp|cake] costs {b}. how much [do they cost together|do both cost|is it in total]
Q {who} walks {a} [miles|steps|blocks] and then {b} more. how far is that in total
Q on a bus there are {a} people, then {b} more get on. how many people are on the bus
Q {who} scored {a} points and then {b} points. how many points is that
Q my [basket|garden|shop] has {a} red {what} and {b} green {what}. how many {what} are there in all
Q {who} put {a} {what} [into|in] a [jar|box|bag], then put in {b} more. how many {what} are in it
F {who} has {a} {what} and gets {b} more. [tell me|say] how many {who} has now
F there are {a} {what} here and {b} {what} there. add them
F {a} {what} plus {b} {what}
F {a} {what} and {b} more {what}
""",
    "only_add": """
Q what is {a} [-|minus|times|*|x|/|divided by] {b}
Q how much is {a} [-|minus|times|*|divided by] {b}
Q what is {a} + {b} + {c}
Q what is {a} plus {b} plus {c}
Q what is the [product|difference] of {a} and {b}
Q what is the square root of {a}
Q what do you get if you [subtract|take] {b} from {a}
Q what is {h} + {b}
Q how much is {b} plus {h}
Q {who} has {a} {what} and [loses|eats|gives away|sells] {b}. how many [are left|does {who} have left|remain]
Q there are {a} {what}, {b} [go away|leave|are taken]. how many are left
Q what is {a} percent of {h}
Q what is half of {a}
I [subtract|take] {b} from {a}
I multiply {a} [by|and|with] {b}
I divide {a} by {b}
I [calculate|compute|solve] {a} [-|minus|*|times|/|x] {b}
I [calculate|compute] {h} + {a}
I add {a}, {b} and {c}
F! {a} [-|*|x|/|minus|times] {b}
F {h} + {h2}
F {a} - {b} = ?
F {a}*{b}=
F {a} + {b} + {c}
""",
    "greeting": """
F [hello|hi|hey|hiya|howdy|greetings]
F [hello|hi|hey] [there|again|you|everybody|seesay|model|bot|assistant]
F good [morning|evening|afternoon|day]
F nice to meet you
F [hello|hi|hey], [how are you|how are you doing|how is it going|nice to meet you|how do you do]
F how are you [|today|doing|doing today]
F how is it going
F what's up
F [hello|hi], I am {who}
F [hello|hi], my name is {who}
F [hello|hi], is anybody there
F are you there
F can we [start|begin|talk]
F welcome
F long time no see
F [hello|hi], can you hear me
F good to see you
F how do you do
F testing
F is this on
""",
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
""",
    "ability": """
Q what can you do
Q how can you [help|help me|assist me|be useful]
Q what do you know
Q what can I [ask you|ask|do here|try|do with you]
Q how does this work
Q what are you [able to do|good at|for|capable of|made for|trained for]
Q what [are your abilities|are your skills|is your purpose|do you do|is this for]
Q what should I [ask|ask you|send you|try]
Q which [tasks|questions|pictures] [can you do|can you answer|do you know|do you understand]
Q what kinds of [pictures|images|questions] [do you understand|can you answer|do you know]
Q can you help me
Q what were you trained on
Q how do I use [you|this]
I! help
I help me
I tell me what you can do
I list your [abilities|skills|features]
I explain what you can do
I show me what you can do
I give me an example of what you can do
E what you can do
E how you can help me
F help
F [instructions|manual|usage]
F your [skills|abilities]
""",
    "thanks": """
F [thanks|thank you|thx|many thanks|thanks a lot|thank you so much|thank you very much|cheers]
F [great|good|nice|perfect|ok|cool|wonderful], [thanks|thank you]
F [great|good job|well done|nice work|excellent|awesome|perfect|correct|that is right|very good]
F [that is right|correct], thank you
F [that helped|that was helpful|very helpful|I appreciate it]
F thank you for [your help|the answer|that|helping]
F thanks for [your help|the answer|that|helping]
F you [are right|did well|are great|are good]
F I am [grateful|happy with that|impressed]
F good answer
F ok thanks
""",
    "goodbye": """
F [bye|goodbye|bye bye|farewell|so long|ciao|good night]
F see you [|later|soon|tomorrow|next time|again]
F [I have to go|I must go|I am leaving|that is all|that was all|we are done]
F [talk to you later|until next time|have a nice day|have a good day|take care]
F ok, bye
F [thanks, bye|thank you and goodbye]
F that's it for today
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
Q can you tell who is in a photo
Q will you understand a photo [of me|of my dog|from my phone]
Q may I [upload|send] a [photo|photograph|screenshot]
F are [photos|real pictures] ok
F real photos too
""",
    "unknown": """
Q what is the capital of {word}
Q who wrote {word}
Q what is the [weather|temperature] [today|tomorrow|like|outside]
Q who is the [president|king|queen|boss]
Q what is the meaning of [life|{word}]
Q how do I [cook|make|build|repair|clean|draw|find] {word}
Q what time is it
Q what day is [it|today]
Q when was {word} [invented|born|built|discovered]
Q what is a {word}
Q why is the [sky|sea|grass] [blue|green]
Q do you like {word}
Q how old is {word}
Q where can I [buy|get|find] {word}
Q how many people live in {word}
Q what does {word} [mean|cost|do]
Q who won [the game|the match|yesterday]
Q what should I [eat|wear|do|read|buy] [today|tonight|for {word}|]
Q do you [believe in|love|want|eat] {word}
Q what is your favorite [word|food|song|animal|book]
Q how [far|heavy|expensive|fast|deep] is [the moon|{word}|the sea]
Q who [painted|invented|discovered|built|sang] {word}
Q why [do|does] {word} [exist|matter|sleep|fly]
Q is {word} [healthy|dangerous|expensive|true|good for me]
Q what is the [history|price|origin|future] of {word}
Q can you [dance|sing|cook|drive|speak French|speak German|think|feel]
Q how does [a {word}|the internet|a computer|an engine] work
Q what rhymes with {word}
Q which [country|city|language|book|movie] is [the best|the oldest|called {word}]
I tell me a [joke|story|secret|fairy tale|riddle]
I tell me [a story|something|a fact|the truth|news] about {word}
I write [a poem|a letter|a song|an essay|an email] about {word}
I write a program that prints {word}
I write code for {word}
I translate {word} into [French|German|Spanish|Latin]
I explain {word}[| to me]
I sing [a song|something]
I summarize the [history|news|story] of {word}
I give me [advice|tips|a recipe|an idea] [about|for] {word}
I solve [this equation|the equation|this riddle]
I recommend [a book|a movie|a restaurant|a song]
I plan [my day|a trip|a party]
I book a [table|flight|hotel]
I play [music|a game|chess] with me
I define {word}
I search the [web|internet] for {word}
F [news|weather|stocks|football results]
F recipe for {word}
F [blah|asdf|lorem ipsum|qwerty]
F I like {word}
F I am [tired|hungry|sad|bored|happy]
""",
}
