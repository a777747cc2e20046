"""Forms of questions that the model should say it cannot answer. `{who}` is a name, `{word}` any word."""

from __future__ import annotations

UNKNOWN_FORMS = {
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
Q! how old is {word}
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
Q what is [the best|a good|the name of the] [recipe|movie|song|restaurant|book|hotel] [for|about|near|in] {word}
Q what is [love|time|happiness|art|gravity|electricity|money|the universe|democracy|inflation]
Q what are [atoms|stars made of|the news|the rules of chess|vitamins|black holes]
Q what did [you|people] [eat|do|think|dream] [yesterday|today|last night|in {word}]
Q what happened [in {word}|yesterday|in the news|in history|last year]
Q what comes after {word}
Q what do you think [about|of] {word}
Q what do [cats|dogs|people|fish|birds] [eat|like|think]
Q what language do they speak in {word}
Q what is the [population|size|area|flag|currency|language] of {word}
Q what is the [difference|connection] between {word} and [love|money|time|war]
Q what is the [opposite|plural|origin|etymology] of {word}
Q what [year|month|date] is it
Q who is {who}
Q who [was|is] the [first|best|richest|tallest|oldest] [man|woman|person|player|president][| in the world| on the moon]
Q who [owns|likes|sells|runs] {word}
Q who will win [the election|the game|tomorrow]
Q where is {word} [made|sold|spoken|]
Q where [do you live|is the station|is Paris|is my phone|do birds go|am I]
Q when [is|does] [Christmas|Easter|the next train|the movie|summer|the game] [start|begin|]
Q when will [it rain|the war end|{word} come|the train arrive]
Q why [are you here|is the sun hot|do people sleep|do we dream|is {word} famous|is it dark]
Q how [do I|can I|to] [get rich|lose weight|sleep better|learn French|fix my car|install Linux|bake bread|get to {word}]
Q how do you [spell|say|pronounce] [happiness|love|hello in French|good morning in German]
Q how many [days|planets|countries|hours|states|bones|letters] are there [in a year|in the world|in a week|in Europe|in the alphabet|in the sky]
Q how much [does {word} cost|is a house|money do I need|is a ticket to {word}]
Q how long [does it take|is the river|do cats live|is a mile]
Q how [tall|high|big|long|old] is [Mount Everest|the Eiffel Tower|the ocean|a giraffe|the king|the universe]
Q is it [raining|cold|late|going to rain|Monday|warm outside]
Q is there [life on Mars|a god|a train to {word}|a doctor near me]
Q are [cats|aliens|ghosts|birds] [real|smart|better than dogs]
Q can [birds swim|fish fly|pigs fly|people live on Mars|dogs talk]
Q can you [write|make|give me|find] [a poem|a song|code|a recipe|a letter|an email|a joke] [about {word}|for {word}|for me|]
Q can you [browse the internet|search the web|remember me|play a song|open the door|call {who}|run code|write Python|make music|learn]
Q do [fish|cats|birds|trees] [sleep|dream|swim|think]
Q do you [know {who}|know the news|have a dog|have friends|have feelings|sleep|dream|play football|drink coffee]
Q did [you sleep well|my team win|{who} call|it rain yesterday]
Q should I [buy {word}|go out|marry {who}|take an umbrella|sell my car]
Q will it [rain|snow|be sunny] [today|tomorrow|]
Q which [team|song|phone|car|color] should I [buy|choose|like]
Q which is better, [tea or coffee|cats or dogs|{word} or money]
Q in which [year|country|city] [was|is] {word} [made|found|born]
I tell me [about|all about|more about] [history|physics|the war|{who}|France|cats]
I tell me [the time|the date|the weather|the score|my fortune|what {word} is|who {who} is|how to cook]
I write [a story|a tweet|a poem|a report|a speech|a review|three sentences] [about|on] {word}
I write [Python|a function|a script|HTML|SQL|a haiku][| for me]
I draw [a picture|a cat|me a {word}|something]
I translate [this|hello|good morning|the sentence] [to|into] [French|German|Spanish|Chinese|Italian]
I correct [my grammar|my spelling|this sentence|my essay]
I remind me to [buy {word}|call {who}|sleep]
I send [an email|a message] to {who}
I call {who}
I turn on the [light|radio|music]
I set [an alarm|a timer]
I convert [dollars to euros|miles to meters|feet to inches]
I prove [that God exists|the theorem|Fermat's theorem]
I imagine [a world|you are a pirate|a dragon]
I pretend to be a [pirate|king|teacher]
I compare [cats and dogs|tea and coffee|France and Spain]
I explain [quantum physics|gravity|the theory of relativity|how engines work|politics]
E [what|who|where|why] {word} is
E how to [cook|make|build|get] {word}
E what time it is
E what the weather is like
N the [capital|history|meaning|price] of {word}
N the [time|date|weather|news]
N a [joke|story|poem|recipe]
F [joke|poem|story|song], please
F [weather|news|time] today
F [price|capital|history|meaning] of {word}
F [I lost my keys|I have a headache|my dog is sick|it is raining]
F I [love|hate|need|want|miss] {word}
F [abc|xyz|foo bar|hmm|la la la|nothing|whatever|banana]
Q! who is [the mayor|the pope|the minister|your teacher|my boss|the winner|the manager|a queen|a king]
Q! who [was|is] {who} [married to|talking about|really|the singer|in history]
Q! do you know [who {who} is|where {who} lives|the king|the queen|the president]
Q! who [bought|eats|loves|needs|found|hid] {word}
Q! how does one [spell|say|cook|sing|prove] {word}
Q! what does [a worm|a cat|a dog|the sun|my boss|{who}] [do|eat|want|think]
Q! what [is|was] the [flag|size|language|area] of [France|Spain|the moon|Rome]
Q! is it dark [in space|outside|at night|in {word}]
Q! why [is space|is the night|is the sun|are stars|are dogs] [dark|black|hot|bright|loyal]
Q! which do you [prefer|like more], [tea|coffee|cats|dogs] or [milk|water|birds|{word}]
Q! what about [love|money|politics|football|{word}]
I! [let's|let us] [play|sing|dance|cook|watch a movie][| together]
F! [let's|let us] [play|sing|dance|cook|watch a movie|play a game|play cards|go swimming][| together]
I! [reserve|order|find|buy] [a table|a flight|a hotel|a pizza|a ticket|{word}][| for me]
I! [switch on|switch off|turn off|turn up] the [light|radio|music|heating|TV]
I! [prove|disprove|show|derive] [the theorem of {who}|that {word} exists|that I am right|a theorem]
I! [please |]sing [me |][the anthem|a lullaby|about {word}|happy birthday]
I! put [hello|this text|the sentence|good night] into [French|German|Spanish|Chinese|Italian]
F! I [hate|love|miss|want|need|enjoy|fear|adore] [my job|the rain|Mondays|pizza|my cat|coffee|my family|the sea|{who}]
F! I [really |always |never ][hate|love|miss|want|need|enjoy] {word}
F! [we|they|you|people] [hate|love|miss|want|need|like] {word}
F! I [lost|broke|sold|bought|found|forgot] [my phone|my bike|{word}]
F! [foo|bar|baz|foobar|spam|eggs|aaa|zzz|hmm hmm|mhm|uh|bla bla|la la|tra la la]
F! [potato|apple|orange juice|cheese|spoon|window|elephant|bread]
F! {word} [{word}|and {word}|or {word}|is nice|is bad]
Q! is [money|love|coffee|sugar|sport|{word}] [good|bad|healthy|dangerous|expensive] [for people|for me|today|]
F! the [weather|news|time|score], please
N! the [weather|score|latest news] [like|today|in Paris]
""",
}
