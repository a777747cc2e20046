"""Forms of questions about clips."""

from __future__ import annotations

CLIP_FORMS = {
    "direction": """
Q [what|which] way [does|did] the {thing} [move|go|travel|head]<in>
Q in [what|which] direction [does|did] the {thing} [move|go|travel|head|drift]<in>
Q [what|which] direction [does|did] the {thing} [move in|go|take|move|travel in|head]
Q! [what|which] way is the {thing} [moving|going|heading|traveling]<in>
Q in [what|which] direction is the {thing} [moving|going|heading|traveling|drifting]<in>
Q where [does|did] the {thing} [move|go|head|travel|move to|go to]<in>
Q where is the {thing} [going|moving|heading|headed|moving to]<in>
Q how [does|did] the {thing} move<in>
Q how is the {thing} moving<in>
Q what is the direction of [the {thing}|the {thing}'s motion|motion of the {thing}]
Q what [does|did] the {thing} do<in>
Q what is the {thing} doing<in>
Q what happens to the {thing}<in>
Q what [motion|movement] does the {thing} make
Q what is the [motion|movement] of the {thing}<in>
Q to [what|which] side does the {thing} move
Q the {thing} moves [where|in which direction|which way]
Q towards which [side|direction|edge] does the {thing} [move|go]
I describe [how|where] the {thing} moves
I describe the [motion|movement|direction|path] of the {thing}
I tell me [where|how|in which direction|which way] the {thing} [moves|goes|is moving]
I [name|give|state|tell me|determine] the direction [of the {thing}|in which the {thing} moves]
I [follow|track|watch] the {thing} and tell me [where it goes|which way it moves|how it moves]
E [where|how|in which direction|which way|in what direction] the {thing} [moves|goes|is moving|is going|is heading]
E what the {thing} [does|is doing]
N the direction of [the {thing}|the motion|motion]
N the [motion|movement|path|direction] of the {thing}
F direction of the {thing}
F {thing}: which [way|direction]
F [direction|motion] of [the {thing}|the motion]
""",
    "direction_it": """
Q! [what|which] way does it [move|go]
Q in [what|which] direction [does it move|is it moving|does it go]
Q where [does it move|is it going|does it go|is it heading]
Q how does it move
Q [what|which] direction is it going
Q what [does it do|is it doing]
I tell me [where|how|in which direction] it moves
I describe [its motion|how it moves|its movement]
E [where|how|which way] it [moves|goes]
N its direction
F and its direction
F which way
""",
    "happens": """
Q what happens [here|in the {image}|in this {image}|in it|]
Q what is [happening|going on|moving] [here|in the {image}|in this {image}|in it|]
Q what [moves|is moving|changes] [here|in the {image}|in this {image}|in it|]
Q what [can be seen|takes place|goes on|occurs] [here|in the {image}|in this {image}]
Q what is the [{image}|motion] about
Q what [motion|movement|action] [is there|do you see|does the {image} show]
Q which [shape|object|thing] [moves|is moving]<in>
Q what do the [shapes|objects|things] do<in>
Q what happens over time<in>
Q what changes [over time|from frame to frame|during the {image}]
I describe what happens<in>
I describe what is [happening|going on|moving] in [the|this] {image}
I describe the [motion|action|events|movement] in [the|this] {image}
I tell me what [happens|is happening|is going on|moves|is moving] in [the|this] {image}
I! explain what [happens|moves|is going on|changes]<in>
I watch [the|this] {image} and [describe it|tell me what happens|say what you see]
I summarize [what happens|the action]<in>
E what [happens|is happening|is going on|moves|is moving|changes]<in>
N the [action|events|motion]<in>
F what happens
F action<in>
Q! what happens in [the|this|that] {image}
Q what are the [shapes|objects|things] doing<in>
Q what do [they|these shapes|these objects] do<in>
Q what do you see [happening|moving|going on]<in>
Q what can you see [happening|moving]<in>
Q how do the [shapes|objects|things] [move|behave|act]<in>
Q how does [everything|the scene] [move|change|behave]<in>
Q which [shapes|objects|things] [move|are moving], and [how|where]
Q [who|what] [moves|is moving] and [where|how|in which direction]<in>
Q what is the [story|plot|scene|event]<in>
Q what [event|events|movements|changes] [do you see|are there|can you see|are shown]<in>
Q what is [this|that|the] {image} showing
Q where do [things|the shapes|the objects] [move|go]<in>
Q what did you [see|notice|observe] [happen|move|]<in>
Q does anything [move|happen|change]<in>, and what
Q from [start|beginning] to end, what happens<in>
Q as time passes, what [happens|changes|moves]<in>
I describe [the movements|how things move|how the shapes move|what the shapes do|what the objects do]<in>
I describe what [you see|can be seen] [happening|moving]<in>
I tell me what the [shapes|objects|things] [do|are doing]<in>
I say what [happens|is happening|is going on|moves]<in>
I report [what happens|what moves|the events|the action]<in>
I narrate [this|the|what happens in the] {image}
I follow [the|this] {image} and [report|tell me] what [happens|moves]
I walk me through what happens<in>
E what the [shapes|objects|things] [do|are doing]<in>
E what [you see happening|takes place|can be seen moving]<in>
E [how|where] the [shapes|objects|things] move<in>
N a [description|summary] of [the action|the motion|what happens|the events]<in>
N what [happens|is going on|moves]<in>
F what is going on
F [movements|motion|events]<in>
F [shapes|objects]: what do they do
""",
    "moves": """
Q [does|did] the {thing} move<in>
Q is the {thing} moving<in>
Q is the {thing} in motion<in>
Q does the {thing} change its [place|position]
Q would you say the {thing} is moving
E [if|whether] the {thing} [moves|is moving]
""",
    "moves_to": """
Q! does the {thing} move {way}
Q is the {thing} [moving|going|heading] {way}
Q does the {thing} go {way}
Q would you say the {thing} moves {way}
Q is it [true|right] that the {thing} moves {way}
Q the {thing} moves {way}, [right|doesn't it]
E [if|whether] the {thing} [moves|goes] {way}
Q is the {thing} on its way {way}
Q does the {thing} [move|go|travel|head|drift] {way}<in>
Q can you see the {thing} [move|go|moving|going] {way}
Q do you see the {thing} [move|go|moving|going] {way}
Q is the direction of the {thing} {way}
Q am I right that the {thing} [moves|goes] {way}
Q I think the {thing} [moves|goes] {way}, is that [right|true|correct]
Q the {thing} is [moving|going] {way}, [right|correct|isn't it]
Q did the {thing} [move|go] {way}
I [check|tell me] [if|whether] the {thing} [moves|goes] {way}
E [if|whether] the {thing} is [moving|going|heading] {way}
F {thing} moves {way}: yes or no
""",
}
