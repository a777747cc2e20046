"""Forms of small talk: greetings, thanks, goodbyes. `{who}` is a name."""

from __future__ import annotations

CHAT_FORMS = {
    "greeting": """
F [hello|hi|hey|hiya|howdy|greetings]
F [hello|hi|hey] [there|again|you|everybody|seesay|model|bot|assistant]
F good [morning|evening|afternoon|day]
F! nice to meet you
F [hello|hi|hey], [how are you|how are you doing|how is it going|nice to meet you|how do you do]
F how are you [|today|doing|doing today]
F! how is it going
F what's up
F [hello|hi], I am {who}
F [hello|hi], my name is {who}
F [hello|hi], is anybody there
F! are you there
F can we [start|begin|talk]
F welcome
F! long time no see
F [hello|hi], can you hear me
F good to see you
F how do you do
F testing
F is this on
F! [hello|hi|hey]
F [hello|hi|hey] to you
F [hello|hi|hey], [assistant|friend|seesay|computer|stranger|my friend|model|bot]
F [dear|hello dear] [assistant|friend|seesay]
F [hello|hi|hey], good [morning|evening|afternoon]
F good [morning|evening|afternoon|day], [assistant|seesay|friend|my friend]
F good [morning|evening|afternoon|day] to you
F a very good [morning|evening|day] to you
F morning
F evening
F [hello|hi|hey], it's me
F [hello|hi|hey], it's {who}[| here| again]
F [hello|hi|hey], this is {who}[| speaking]
F [hello|hi|hey], {who} here
F {who} here
F [hello|hi|hey], I'm {who}
F I am {who}[|, nice to meet you|, hello]
F my name is {who}[|, and yours|, nice to meet you]
F [hello|hi|hey] from {who}
F {who} says [hello|hi]
F call me {who}
F [hello|hi|hey], I am new here
F I am new here
F [hello|hi|hey], pleased to meet you
F pleased to meet you
F [glad|happy|great|good] to meet you
F it is [nice|good|great|a pleasure] to [meet|see] you
F a pleasure to meet you
F [hello|hi|hey] and welcome
F [yo|aloha|hola|bonjour|ahoy|salut|g'day]
F [hello|hi|hey] hello
F [how are|how're] things
F how [have you been|do you feel|are you feeling|is life|is your day|was your day]
F [is everything|are you] [ok|fine|well|alright|good]
F are you [ready|awake|online|listening|available|there, assistant]
F is [anybody|anyone|somebody|someone] [there|here|home]
F anybody there
F [hello|hi|hey], are you [there|ready|awake|listening|online]
F [hello|hi|hey], [shall we start|let's start|let's talk|let us begin]
F [let's|let us] [start|begin|talk|chat|go]
F shall we [start|begin|talk|chat]
F may I [start|talk to you|chat with you]
F can you [hear|read] me
F do you [hear|read|copy] me
F does this [work|thing work]
F is it working
F are you working
F [test|ping|testing testing|test test|one two, test]
F just [saying hello|saying hi|testing|a test]
F I wanted to say [hello|hi]
F I [just |]want to [say hello|say hi|talk|chat]
F I am back
F here I am[| again]
F it's me[| again]
F long time no see, [friend|assistant]
F what is [up|new|up today]
F [how is everything|how goes it|what's new|how's life|how's it going]
F it's {who}[|, hello|, hi| speaking]
F {who} [here again|is here|is back|speaking|is my name]
F [morning|afternoon|evening], [assistant|seesay|friend|all|everybody|there]
F a [good|happy|nice|lovely] [morning|evening|afternoon|day]
F [good|happy] [morning|afternoon|evening|day] [all|there|everyone|then]
F [hello|hi|hey] [model|computer|friend], {who} [here|speaking|is my name]
F [hello|hi|hey], let me introduce myself: {who}
F I only wanted to [say hello|greet you|say hi|meet you]
F [nice|lovely|wonderful|great] to [see|talk to] you
F I'm [here|back|{who}|new]
F [hello|hi|hey], it is my first [time|day] here
F this is my first [time|visit][| here]
F [hello|hi|hey], do you [hear|read] me
F! [hello|hi|hey], can you [read|see] me [now|well|there]
F! I [came|stopped by|dropped in|am writing] [just |only |]to [say hello|say hi|chat a bit|chat with somebody|talk a little|meet you]
F! [may|can|could] we [chat|talk] [a bit|a little|for a while|now]
F! I would like [to talk a bit|a little chat|to chat with you|to get to know you]
F! [so |]we meet [again|at last]
F! [hello|hi|hey] [again|once more], {who} [again|speaking again|is here again]
F! guess who is back, it's {who}
F! {who} [again|once more|just came in|joins you]
F! [hello|hi|hey], [new|a new user|a beginner] here
F! I am [a beginner|a new user|a newcomer][| here]
F! [glad|pleased|happy] [to be here|that you are here|to see you]
F! [everything|all] [well|working|ok|fine][| there| today]
F! what a [pleasure|joy] to [meet|see] you
F! the best of [mornings|evenings|days] to you
F! [hello|hi|hey], the same to you
F! [hello|hi|hey] from [me|all of us|Berlin|a new user]
F! I [greet|salute|welcome] you
F! [hello|hi|hey], [nice day|lovely morning|what a day], isn't it
F! [hello|hi|hey] hello, anyone
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
F! [thanks|thank you]
F [thanks|thank you], [seesay|assistant|friend|my friend|model|dear assistant]
F [thanks|thank you] [again|once more|indeed|kindly]
F [thanks|thank you], [that helped|that was helpful|that is great|very helpful|you are great|well done]
F [thanks|thank you] for [everything|telling me|explaining|looking|the help|the quick answer|your time|your answers|being there]
F [many|a thousand|a million|so many] thanks
F thanks [a bunch|a ton|so much|very much|a million|ever so much|for all]
F [my|warm|big|hearty] thanks
F [merci|danke|gracias|grazie|ta|ty|tysm]
F I thank you
F I [want|wanted|would like] to [thank you|say thank you|say thanks]
F I am [thankful|very grateful|so grateful|pleased|satisfied]
F I [like|love] [it|that|your answer|the answer|that answer|this]
F how [nice|kind|good|helpful] of you
F that is [nice|kind|great|good|helpful|perfect|wonderful|amazing|what I wanted|all right|exactly right] [of you|]
F that was [great|good|nice|quick|fast|right|perfect|correct|what I needed|kind of you]
F this is [great|good|helpful|perfect|correct|right|very helpful]
F [very|really|pretty|so] [good|nice|helpful|kind|cool|clever]
F you [helped me|helped me a lot|are kind|are helpful|are so helpful|are the best|are smart|are clever|made my day]
F you are [very kind|very helpful|amazing|wonderful|a great help|a star]
F what a [good|great|nice|clever] [answer|model|assistant]
F [good|great|nice|excellent|clever] [answer|work|job|bot|model|assistant]
F [amazing|fantastic|brilliant|super|lovely|bravo|impressive|splendid|wow|terrific]
F [yes|exactly|right], [thanks|thank you|that is right|that is correct]
F [right|correct|exactly|true|well said]
F [ok|okay|alright|fine|good], [thank you|thanks|that helps|that is good]
F I owe you [one|]
F much [appreciated|obliged]
F [it is|your help is|that is] [much |very |]appreciated
F [bless you|hats off|kudos|well played|respect]
F [got it|understood|I see], [thanks|thank you]
F no more words, just thanks
F! [thank you|thanks] [a lot|kindly|a million|so very much|again and again|for that, really]
F! [kind|sincere|best|endless|heartfelt] thanks
F! [gracias|merci|danke|grazie|tysm|ty], [my friend|assistant|seesay|model|you are kind]
F! [a big|many] [gracias|merci|danke|grazie]
F! [merci beaucoup|muchas gracias|danke sehr|vielen dank|mille grazie|obrigado|arigato|spasibo]
F! [I'm|we are] [very |so |really |][pleased|satisfied|thankful|grateful] [with that|with this|with the answer|for that|now]
F! [pleased|satisfied|thankful|grateful][| I am| indeed|, truly]
F! this makes me [happy|pleased|satisfied|thankful]
F! [that's|this is|it is] [so |really |very |][kind|nice|sweet|good] of you
F! [that's|it's] [all right|alright|fine], [thanks|you helped|well done]
F! [that's|this is] exactly what I [wanted|needed|asked for|was looking for]
F! [your answer was|it was|the answer was] [helpful|perfect|right|kind|what I wanted]
F! [alright|fine|okay|good], [you helped me|that was helpful|this helps|it helps]
F! that [helps|really helps|helps me|helps a lot]
F! [I appreciate|I value|I am glad about] [your help|your time|the answer|it|this]
F! [thanks|thank you] for [this|your time|the answers|your patience|being so quick|looking at it|reading it]
F! [thanks|thank you], [merci|gracias|danke]
F! [I am|I'm] [glad|happy|delighted][| with this| about it| that it works], [thanks|thank you]
F! [many thanks|thanks], once [more|again]
""",
    "goodbye": """
F [bye|goodbye|bye bye|farewell|so long|ciao|good night]
F see you [|later|soon|tomorrow|next time|again]
F [I have to go|I must go|I am leaving|that is all|that was all|we are done]
F! [talk to you later|until next time|have a nice day|have a good day|take care]
F ok, bye
F! [thanks, bye|thank you and goodbye]
F that's it for today
F! [bye|goodbye]
F! see you [later|soon|tomorrow]
F [bye|goodbye|see you|farewell|good night|so long], [seesay|assistant|friend|my friend|model|everybody|then]
F [bye|goodbye] [now|then|for now|for today|and thanks|and take care|my friend]
F [bye|goodbye], [see you|see you later|see you soon|take care|have a nice day|until tomorrow|until next time]
F well, [bye|goodbye|I have to go|I must go|that is it|that is all]
F [ok|okay|alright|so], [goodbye|see you|I have to go|I must go|that is all|that is it|good night|I am off]
F [I|now I] [have to leave|have to run|need to go|need to leave|should go|must leave|must be going|got to go|gotta go]
F I am [off|going|done|going home|going now|going to bed|leaving now|out|finished|done for today]
F I will [be back|be going|go now|leave now|see you later|talk to you later|come back tomorrow|go to bed]
F I'll [be back|see you later|be going|come back later]
F I [say goodbye|want to say goodbye|wanted to say bye]
F I have no more questions
F no more questions[|, thanks|, bye|, goodbye]
F I have no [further|other] questions
F [nothing else|nothing more|that will be all|that would be all|that's all|that's everything|that is everything]
F that [is|was] [it|all|everything] [for today|for now|from me|folks|]
F we are [done|finished|through] [here|for today|now|]
F let's [stop|finish|end] [here|this|it here|for today|now]
F let us [stop|finish|end] [here|for today]
F [this is|it is] [the end|time to go|time to say goodbye|goodbye]
F time to [go|leave|say goodbye|sleep|stop]
F the end
F! end of [the conversation|our talk|chat]
F [quit|exit|end|stop|close|log off|log out|logout|over and out|signing off]
F you can [go|stop|rest|sleep|leave] [now|]
F have a [good|nice|great|lovely|pleasant] [evening|night|weekend|one|time|afternoon|day, bye]
F! enjoy [your day|the rest of the day|your evening|the weekend]
F sleep well
F good night[| to you| and bye| and sleep well]
F [until|till] [tomorrow|later|then|we meet again|we talk again|next week]
F see you [around|then|on Monday|next week|next time, bye|some day|in the morning]
F [speak|talk|chat] [to you |with you |]soon
F [speak to you|catch you|meet you|talk] later
F [later|laters|cheerio|adieu|adios|au revoir|hasta la vista|ta ta|toodles|tschuess|arrivederci]
F it was [nice|good|great|a pleasure] [talking|chatting|speaking] [to|with] you
F it was [nice|good|great] to [talk to you|meet you], [bye|goodbye]
F [nice|good|great] talking to you
F [thanks|thank you], [goodbye|see you|see you later|that is all|that was all|I have to go|good night]
F [thanks|thank you] and [bye|see you|good night|take care|farewell]
F take care[| of yourself|, bye| and goodbye]
F [be well|all the best|best wishes|stay safe|stay well|keep well|godspeed]
F I wish you a [good|nice] [day|evening|weekend]
F I leave you [now|alone|alone now]
F [my bus|my train|my friend|dinner] is [here|waiting|ready], [bye|I must go|goodbye]
F hope to see you [again|soon]
F we [will meet again|will talk again|talk later|speak tomorrow]
F [see you|until] [then|later|soon|tomorrow], [friend|seesay|assistant]
F [talk|speak] to you [tomorrow|next time|next week|another day]
F we [speak|talk|chat] [soon|again|tomorrow]
F let's [talk|speak|chat] [again|later|tomorrow|another time]
F [I|now I|well, I] [must|should|have to|need to] [be off|be gone|stop|sleep|get going|say goodbye]
F I [am finished|have finished|stop here|quit|am out of here|have to catch my train|have to work]
F [nothing|no|nope], [that's it|that is it|that was it|I am done|bye]
F it was [fun|a nice talk|a good talk|lovely], [bye|goodbye|see you]
F! [I|now I|sorry, I] [really |][need|have|ought] to [be going|be on my way|head home|head out|hurry|catch a bus]
F! I [had better|better] [go|leave|run|be going]
F! I [should|must|gotta|need to] [be leaving|go home|head home|run now|go to sleep|leave soon]
F! [got to|gotta|have to|need to] [run|leave|dash|hurry|sleep]
F! [time|it's time] for [me to go|me to leave|bed|us to stop|goodbye]
F! I [leave|am leaving] [the chat|this place|for today|in peace|you here|soon]
F! I [will |]leave you [to it|be|in peace|for now|with that|here]
F! [leaving|going|running] [now|soon|home]
F! [nothing|no], [nothing else|nothing more|no more] [from me|for now|for today|today|to ask]
F! there is nothing [else|more|left] [to ask|to say|I need|for today]
F! [everything|all] is [done|said|finished|answered]
F! [I think |I guess |]that's [everything|all|it] [for me|for this time|I wanted|I needed]
F! that will [be enough|do|be it|do for today]
F! [then|so|well] that [is|was] [everything|all] [I needed|I wanted|for now|I had]
F! we [have finished|are finished|can stop|can end it] [for now|for today|now]
F! [it was |][nice|great|good|lovely|a pleasure] [meeting you|to have talked|to chat][|, bye|, see you]
F! [talking|chatting|speaking] with you was [nice|fun|great|a pleasure]
F! [must|should] [go|be off|stop|sleep] [now|soon]
F! I [go|am off] to [sleep|bed|work|school|lunch|the bus]
F! the [bus|train|taxi|lunch|dinner] is [here|coming|leaving|waiting], [so bye|see you|I leave]
F! [let me|allow me to] say [goodbye|bye|farewell]
F! [say|saying] [goodbye|bye|farewell][| now| to you]
""",
}
