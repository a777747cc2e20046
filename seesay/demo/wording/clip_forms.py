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
I explain what [happens|moves|is going on|changes]<in>
I watch [the|this] {image} and [describe it|tell me what happens|say what you see]
I summarize [what happens|the action]<in>
E what [happens|is happening|is going on|moves|is moving|changes]<in>
N the [action|events|motion]<in>
F what happens
F action<in>
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
Q does the {thing} move {way}
Q is the {thing} [moving|going|heading] {way}
Q does the {thing} go {way}
Q would you say the {thing} moves {way}
Q is it [true|right] that the {thing} moves {way}
Q the {thing} moves {way}, [right|doesn't it]
E [if|whether] the {thing} [moves|goes] {way}
""",
}
