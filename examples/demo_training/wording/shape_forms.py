"""Forms of questions about pictures of shapes; most of them suit clips as well."""

from __future__ import annotations

SHAPE_FORMS = {
    "describe": """
I describe [the|this|that|my] {image}
I describe [the|this] {image} [in detail|in one sentence|in a few words|briefly|in full|as well as you can|precisely]
I describe [what|everything|all that|all] you <see>
I describe what [is|can be seen] [in|on] [the|this] {image}
I describe [it|this|everything]
I caption [this|the] {image}
I write [a|a short|a brief|one] [caption|description] [for|of] [this|the] {image}
I give [me|us|] a [short|brief|full|good|] description of [this|the|that] {image}
I tell [me|us] what [is|you see|you can see|can be seen|is there|is visible|is shown|appears] [in|on] [the|this] {image}
I! tell [me|us] what [you see|is here|is shown here|you can see]
I tell me about [this|the|my] {image}
I tell me everything [about|you see in] [this|the] {image}
I explain what [is in|is shown in|I see in|one can see in|is going on in|is on] [this|the] {image}
I summarize [this|the] {image}
I summarize what [you see|is shown|is in the {image}]
I say what [is in|is on|you see in|is shown in] [this|the|that] {image}
I list [everything|all things|what is|all you see|all that is] in [the|this] {image}
I list what you see
I name [everything|all things|what you see|all that you see]<in>
I take a look at [this|the] {image} and [describe it|tell me what is in it|tell me what you see|say what it shows]
I look at [this|the] {image} and [describe it|tell me what it shows|explain it]
I have a look and [tell me what you see|describe it]
I provide a [description|caption|summary] of [the|this] {image}
I put [this|the] {image} into words
I walk me through [this|the] {image}
I analyze [this|the] {image}
I inspect the {image} and report what you see
I identify [everything|what is|the contents|what you see] in [the|this] {image}
I report [what you see|what is there|what is in the {image}]
Q what [is|do we have] [in|on] [this|the|that|my] {image}
Q what do you see [in|on|when you look at] [this|the|that|my] {image}
Q! what [do|can] [you|we|I|one] see
Q what [do|can] [you|we|I|one] see here
Q what can you see [in|on] [this|the|that] {image}
Q what does [this|the|that|my] {image} [show|contain|depict|display|look like|have in it|include]
Q what is [this|that|it|here]
Q what is this {image} [of|about|showing]
Q what is [shown|depicted|displayed|drawn|visible|to be seen|there|pictured]<in>
Q what [am I|are we] looking at
Q what [am I|are we] looking at [here|in this {image}]
Q what is there to see<in>
Q what [things|contents|stuff] [do you see|are there|can you see|are]<in>
Q what can you tell me about [this|the|that] {image}
Q what can you say about [this|the] {image}
Q what would you say [is in|is on|this is in] [this|the] {image}
Q what [did I|did they|did someone|have I] [draw|send you|just send you|upload|show you]
Q what has been drawn<in>
Q what appears [in|on] [this|the] {image}
Q what [does it show|is going on here|do we see here|is on display here]
Q how would you describe [this|the|that] {image}
Q how would you [caption|summarize|describe] [this|it|that]
Q how does [the|this] {image} look
Q which things [are in|can you see in|do you see in] [this|the] {image}
E what [is in|you see in|you can see in|can be seen in|this shows in] [the|this|my] {image}
E what [you see|you can see|is shown|is there to see|can be seen|I am looking at|we are looking at|this is|this shows]
E what [the|this|my] {image} [shows|contains|depicts|is about|looks like]
N a [description|short description|brief description|full description|caption|summary] of [the|this] {image}
N the [contents|content] of [the|this] {image}
F [description|caption]
F [description|caption|summary] of the {image}
F [what is this|what do you see] [in the {image}|here]
F {image} description
F your description of [this|the] {image}
""",
    "list_shapes": """
Q! [what|which] {shapes} [are|are there|are shown|are visible|are drawn]<in>
Q [what|which] {shapes} do you see<in>
Q [what|which] {shapes} can you <see><in>
Q [what|which] {shapes} does the {image} [show|contain|have|include]
Q what kinds of {shapes} [are there|do you see|can you see]<in>
Q what {shapes} [have been|were|did someone|are] [drawn|draw]<in>
I list [all the|all|the|every one of the] {shapes}<in>
I name [all the|all|the] {shapes}<in>
I describe [all the|all|the] {shapes}<in>
I tell me [which|what] {shapes} [there are|you see|you can see|are there]<in>
I identify [all the|all|the] {shapes}<in>
I enumerate [all|the|all the] {shapes} and their colors
E [which|what] {shapes} [there are|are in the {image}|you see|the {image} shows|the {image} contains]
N a list of [all the|the|all] {shapes}<in>
N the {shapes}<in>
F list of {shapes}
F [all|the] {shapes}, please
""",
    "list_colours": """
Q [what|which] {colour}s [are|are there|are shown|are used|appear|are present]<in>
Q! [what|which] {colour}s do you see<in>
Q [what|which] {colour}s can you <see><in>
Q [what|which] {colour}s does the {image} [show|contain|have|use|include]
Q [what|which] {colour}s do the shapes have<in>
Q what {colour} are [the shapes|they|the objects|the things|all the shapes]<in>
Q [what|which] {colour}s were used<in>
I list [all the|all|the] {colour}s<in>
I name [all the|all|the] {colour}s<in>
I name the {colour}s of [the|all] shapes<in>
I identify the {colour}s<in>
I tell me [which|what] {colour}s [there are|you see|the shapes have|are used]<in>
E [which|what] {colour}s [there are|you see|are used|the shapes have|appear in the {image}]
N the {colour}s [used||shown|of the shapes]<in>
N a list of the {colour}s<in>
F {colour}s
F all {colour}s used here
I! list [all the|all|the] {colour}s
I list [every|each] {colour} [you see|that appears|used|there is|]<in>
I list the {colour}s of [all|all the|the|every one of the] [shapes|objects|things]<in>
I name [every|each|each and every] {colour}<in>
I give [me|us|] [all the|the|a list of all|a list of the] {colour}s<in>
I [write down|enumerate|report|state|find|show me|tell me] [all the|all|the|every one of the] {colour}s<in>
I go through the {colour}s<in>
Q what are [the|all the|all] {colour}s<in>
Q what [different |]{colour}s [are there|do you see|can you see]<in>
Q which {colour}s [make up|occur in|appear in|are part of] [the|this] {image}
Q in [what|which] {colour}s are the [shapes|objects|things] [drawn|painted]
Q what {colour}s [did they|did someone|did I] use
E [what|which] {colour}s [occur|there are in the {image}|the {image} has|were used]
E what the {colour}s are
N all [the |]{colour}s<in>
N the [full |complete |]list of {colour}s<in>
F [list of|all|all the|the] {colour}s
F {colour} list
F {colour}s, please
""",
    "count": """
Q! how many {things} are there<in>
Q how many {things} are [shown|visible|present|displayed|depicted|drawn|pictured]<in>
Q how many {things} do [you|we|I] [see|notice|count|spot|find|observe|have]<in>
Q! how many {things} can [you|we|I|one] [see|count|find|spot|observe]<in>
Q how many {things} [does|did] [the|this] {image} [show|contain|have|include|depict]
Q how many {things} are [in|on] [the|this|that|my] {image}
Q how many {things} [in total|altogether|all in all|overall]
Q how many {things} are there [in total|altogether|all in all|overall]
Q what is the [number|count|total number|amount|quantity] of {things}<in>
Q what number of {things} [do you see|is there|can you see|is shown]<in>
Q how many {things} have been drawn<in>
Q how many {things} were drawn<in>
Q how many {things} [appear|show up|can be seen|can be found|are to be seen|exist]<in>
Q how many {things} did [the artist|someone|they|I|my child] draw
Q how many {things} would you say there are<in>
Q how many {things} are we looking at
Q in [this|the] {image}, how many {things} [are there|do you see|can you see]
Q looking at the {image}, how many {things} [are there|do you see]
Q the {image} shows how many {things}
Q there are how many {things}<in>
Q what is the total [number of|count of] {things}<in>
Q if you count the {things}, how many [are there|do you get]
I count [the|all the|all|every one of the|up the] {things}<in>
I count how many {things} there are<in>
I [find out|work out|determine|figure out] how many {things} there are<in>
I [state|name|report|return|write|find] the [number|count|total number] of {things}<in>
I give [me|us|] the [number|count|total] of {things}<in>
I tell me the number of {things}<in>
I look for {things} and count them
I count {things}
I check how many {things} [there are|you see]<in>
E how many {things} [there are|you see|you can see|you count|are in the {image}|the {image} shows|are drawn|are visible]
E how many {things} there are [in total|in the {image}|here|altogether]
N the [number|count|total|total number|amount] of {things}<in>
N a count of [the|all] {things}<in>
F number of {things}
F {things}: how many
F how many {things}
F {things} count
F count of {things}
F total {things}
""",
    "how_many_of_them": """
Q! how many of them are {colour_word}
Q how many of [these|those|the shapes] are {colour_word}
Q and how many of them are {colour_word}
Q how many are {colour_word}
Q how many {colour_word} ones are there
Q how many of [them|the shapes] have the {colour} {colour_word}
F how many {colour_word} ones
F and {colour_word} ones
E how many of them are {colour_word}
""",
    "count_is": """
Q! are there [|exactly |really ]{n} {things}<in>
Q do you [see|count|find] {n} {things}<in>
Q does the {image} [show|contain|have] {n} {things}
Q is the number of {things} {n}
Q can you see {n} {things}<in>
Q am I right that there are {n} {things}<in>
Q is it [true|correct|right] that there are {n} {things}<in>
Q I count {n} {things}, is that [right|correct|true]
Q there are {n} {things}, [right|correct|aren't there]
Q would you say there are {n} {things}<in>
E [if|whether] there are {n} {things}<in>
""",
    "more_kind": """
Q are there more {one} than {other}<in>
Q do you [see|count|find] more {one} than {other}<in>
Q does the {image} [show|contain|have] more {one} than {other}
Q can you see more {one} than {other}<in>
Q is the number of {one} [larger|greater|higher] than the number of {other}
Q are the {one} [more than|more numerous than] the {other}
E [if|whether] there are more {one} than {other}<in>
""",
    "colour_of": """
Q! what {colour} is the {thing}<in>
Q which {colour} is the {thing}<in>
Q what {colour} [does|did] the {thing} have<in>
Q which {colour} does the {thing} have<in>
Q what is the {colour} of the {thing}<in>
Q what is the {thing}'s {colour}
Q what {colour} has the {thing}
Q the {thing} is [what|which] {colour}
Q the {thing} has [what|which] {colour}
Q what {colour} was used for the {thing}<in>
Q [in what|in which] {colour} is the {thing} [drawn|painted|shown|filled]
Q what {colour} would you say the {thing} is
Q what {colour} do you see on the {thing}
Q what is the [main|fill|] {colour} of the {thing}<in>
Q how is the {thing} {colour}ed
Q if you look at the {thing}, what {colour} is it
Q I see a {thing}, what {colour} is it
Q there is a {thing}, what {colour} is it
I name the {colour} of the {thing}<in>
I [state|give|report|identify|find|determine] the {colour} of the {thing}<in>
I tell me the {colour} of the {thing}<in>
I tell me what {colour} the {thing} is
I look at the {thing} and [tell me|name|say] its {colour}
I say which {colour} the {thing} has
E [what|which] {colour} the {thing} [is|has]
E what the {colour} of the {thing} is
E what {colour} you see on the {thing}
N the {colour} of the {thing}<in>
N the {thing}'s {colour}
F {colour} of the {thing}
F the {thing}: [what|which] {colour}
F {thing} {colour}
F the {thing} - {colour}
""",
    "colour_choice": """
Q is the {thing} {c1} or {c2}
Q would you say the {thing} is {c1} or {c2}
Q is the {colour} of the {thing} {c1} or {c2}
Q which {colour} is the {thing}, {c1} or {c2}
Q what {colour} is the {thing}: {c1} or {c2}
Q does the {thing} look {c1} or {c2}
Q is it a {c1} or a {c2} {thing}
E [if|whether] the {thing} is {c1} or {c2}
""",
    "is_colour": """
Q! is the {thing} {c1}
Q is the {thing} {c1} in {colour}
Q is the {colour} of the {thing} {c1}
Q does the {thing} have the {colour} {c1}
Q does the {thing} look {c1}
Q would you say [that |]the {thing} is {c1}
Q is it [true|correct|right] that the {thing} is {c1}
Q the {thing} is {c1}, [right|correct|isn't it]
Q am I right that the {thing} is {c1}
Q I think the {thing} is {c1}, is that [right|correct|true]
Q do you see that the {thing} is {c1}
E [if|whether] the {thing} is {c1}
""",
    "colour_of_only": """
Q what {colour} is [it|this|that]
Q what {colour} is the {only}<in>
Q which {colour} is [it|the {only}]
Q what is its {colour}
Q what is the {colour} of [it|this|the {only}|that {only}]
Q what {colour} does [it|the {only}] have
Q [what|which] {colour} do you see<in>
Q what {colour} has [it|the {only}]
Q what {colour} was used<in>
Q in [what|which] {colour} is [it|the {only}] [drawn|painted|shown]
Q what {colour} would you say it is
Q and what {colour} is it
I name [the|its] {colour}
I name the {colour} of the {only}
I [state|give|report|identify|tell me|find] [the|its] {colour}
I tell me what {colour} it is
I say [what|which] {colour} it is
E [what|which] {colour} [it is|it has|the {only} is|the {only} has|this is]
N [the|its] {colour}
N the {colour} of the {only}
F {colour}
F [its|the] {colour}, please
F and its {colour}
""",
    "shape_of": """
Q [what|which] shape is {c1}<in>
Q what is the shape of the {c1} [object|thing|one|figure]<in>
Q! [what|which] shape is the {c1} [object|thing|one|figure]<in>
Q! what is the {c1} [shape|object|thing|one|figure]<in>
Q what is {c1}<in>
Q which [object|thing|one|of them|of the shapes|figure] is {c1}<in>
Q what shape does the {c1} [object|thing|one|figure] have<in>
Q what form does the {c1} [object|thing|one] have
Q [what|which] shape has the {colour} {c1}
Q what do you see in {c1}<in>
Q what [has been|was] drawn in {c1}<in>
Q what kind of [shape|thing|object] is the {c1} [one|object|thing]
Q the {c1} [object|thing|one] is [what|which] shape
Q what {c1} [shape|object|thing] [is there|do you see|can you see]<in>
I name the {c1} [shape|object|thing]<in>
I name the shape of the {c1} [object|thing|one]
I name the shape that is {c1}
I [identify|find|tell me] the {c1} [shape|object|thing]<in>
I tell me [what|which] shape is {c1}
I tell me what the {c1} [thing|object|one] is
I look at the {c1} [object|thing] and [name|tell me|say] its shape
E [what|which] shape [is {c1}|the {c1} one is|the {c1} object has|the {c1} thing is]
E what the {c1} [shape|object|thing|one] is
N the shape of the {c1} [object|thing|one]<in>
N the {c1} shape
F shape of the {c1} [one|object|thing]
F the {c1} [one|object|thing]: what shape
F what shape, the {c1} one
""",
    "is_shape": """
Q is the {c1} [shape|object|thing|one|figure] {a_shape}
Q is the {c1} [thing|one] in the {image} {a_shape}
Q is [what is {c1}|that {c1} thing] {a_shape}
Q would you say the {c1} [thing|one|object] is {a_shape}
Q is it [true|correct|right] that the {c1} [shape|object|thing|one] is {a_shape}
Q the {c1} [thing|one|object|shape] is {a_shape}, [right|correct|isn't it]
Q does the {c1} [thing|one|object] look like {a_shape}
Q is the shape of the {c1} [thing|one|object] {a_shape}
E [if|whether] the {c1} [thing|one|object|shape] is {a_shape}
""",
    "shape_of_only": """
Q [what|which] shape is [it|this|that]
Q what is its shape
Q [what|which] shape [do you see|does it have|is shown|is drawn|has it|can you see]<in>
Q what kind of shape is [it|this|that]
Q what shape [is in|is on|does] the {image}[| show]
Q what form does it have
Q [what|which] shape would you say it is
Q and what shape is it
Q what is the shape of [it|this|that|the object|the thing]
Q what is the name of [this|the|that] shape
Q what do you call this shape
I name [the|this|its|that] shape
I [identify|state|give|report|tell me] [the|its] shape
I tell me [what|which] shape [it is|this is|you see]
I say [what|which] shape it is
E [what|which] shape [it is|it has|this is|you see]
N [the|its] shape
N the shape of [the object|the thing|it]
F shape
F [its|the] shape, please
F and its shape
""",
    "colour_it": """
Q! what {colour} is it
Q! and what {colour} is it
Q which {colour} is it
Q what is its {colour}
Q what {colour} does it have
Q what {colour} is [that|that one|this one]
Q what {colour} has it
I tell me its {colour}
I name its {colour}
I tell me what {colour} it is
I say which {colour} it has
E what {colour} it [is|has]
N its {colour}
F and its {colour}
F and the {colour}
F [what|which] {colour}
""",
    "shape_it": """
Q! what shape is it
Q! and what shape is it
Q which shape is it
Q what is its shape
Q what shape does it have
Q what shape is [that|that one|this one]
Q what [kind of shape|form] is it
I tell me its shape
I name its shape
I tell me what shape it is
E what shape it [is|has]
N its shape
F and its shape
F and the shape
F [what|which] shape
""",
}
