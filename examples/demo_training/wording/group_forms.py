"""Forms of questions about several shapes of a picture at once, and about a blank picture."""

from __future__ import annotations

GROUP_FORMS = {
    "count_not": """
Q! how many {shapes} are not {c1}<in>
Q how many of [them|the {shapes}|these {shapes}] are not {c1}
Q how many {shapes} [do not have|don't have] the {colour} {c1}
Q how many {shapes} are [of another {colour} than|any {colour} but|in a {colour} other than] {c1}<in>
Q how many {shapes} that are not {c1} [are there|do you see|can you see|are shown]<in>
Q how many {shapes} [do you see|are there|can you count] that are not {c1}<in>
Q how many [other|] {shapes} [aren't|are something other than|are anything but] {c1}<in>
Q how many not {c1} {shapes} are there<in>
Q how many non-{c1} {shapes} [are there|do you see|are shown]<in>
Q [without|leaving out|except for|not counting] the {c1} ones, how many {shapes} are [there|left|shown]<in>
Q what is the number of {shapes} that are not {c1}<in>
Q if you [ignore|leave out|skip] the {c1} ones, how many {shapes} [remain|are left|are there]
I count the {shapes} that are not {c1}<in>
I count [all|all the|the] {shapes} [but|except] the {c1} ones
I count [all|all the|the] {shapes} [that have another {colour} than|in any {colour} but] {c1}
I count [the] [not |non-]{c1} {shapes}<in>
I tell me how many {shapes} are not {c1}
E how many {shapes} are not {c1}
E how many {shapes} there are [that are not|in another {colour} than] {c1}
N the number of {shapes} [that are not {c1}|of another {colour} than {c1}|that aren't {c1}]<in>
F number of {shapes} not {c1}
F {shapes} that are not {c1}: how many
F how many not {c1}
F how many that are not {c1}
""",
    "list_not": """
Q! [what|which {shapes}] [is|are] not {c1}<in>
Q which {shapes} are not {c1}<in>
Q what is not {c1}<in>
Q which of [them|the {shapes}|these] are not {c1}
Q which {shapes} [do not have|don't have] the {colour} {c1}<in>
Q which {shapes} are [of another {colour} than|any {colour} but|in a {colour} other than] {c1}<in>
Q what [else|] is there [except|besides|other than|apart from] [what is {c1}|the {c1} ones]
Q which {shapes} aren't {c1}<in>
Q what [do you see|can you see|is shown] that is not {c1}<in>
Q what {shapes} [are there|do you see|can you see] that are not {c1}<in>
I list [the|all|all the] {shapes} that are not {c1}<in>
I name [the|all|all the|what is|everything that is] [{shapes} that are |]not {c1}<in>
I [show|tell] me [everything|what|all that] is not {c1}<in>
I list [everything|all] [but|except] the {c1} ones
I list [the] [not |non-|non-]{c1} {shapes}<in>
E which {shapes} are not {c1}
E [what|what here] is not {c1}
N the {shapes} [that are not {c1}|of another {colour} than {c1}|that aren't {c1}]<in>
F [all|] {shapes} that are not {c1}
F everything not {c1}
F everything [but|except] the {c1} ones
F not {c1}
""",
    "all_one_colour": """
Q! [are|do] [all the|all|the] {shapes} [the same {colour}|have the same {colour}]<in>
Q are [all|all the|the] {shapes} [of|in] [the same|one|one and the same] {colour}<in>
Q are they all the same {colour}
Q are they all [of|in] [the same|one] {colour}
Q do [they|all of them|the {shapes}|all {shapes}] [share|have] [a|one|the same|a single] {colour}
Q does every {only} have the same {colour}
Q does [each|every] {only} [have|share] the same {colour}<in>
Q is [every|each] {only} [of the|the] same {colour}<in>
Q is [everything|all of it|all] [of|in] [the same|one] {colour}<in>
Q is [everything|all of it] the same {colour}<in>
Q same {colour}
Q same {colour} for [all|everything|all of them]
Q all the same {colour}
Q is the {colour} of [all|all the|the] {shapes} the same
Q is there only one {colour}<in>
Q do the {shapes} [differ in {colour}|match in {colour}|have equal {colour}s]
Q are the {colour}s [all |][the same|equal|identical]<in>
Q are all {shapes} [colored|painted|drawn] [alike|the same|in one {colour}]
E whether [all|all the|the] {shapes} [have|share] the same {colour}
E whether [all the|the] {shapes} are of the same {colour}
E if they are all the same {colour}
E if [everything|all of them] [has|have] the same {colour}
I check whether [all|all the|the] {shapes} have the same {colour}
I [say|tell me] whether they all have the same {colour}
F all of one {colour}
F one {colour} or more
F same {colour} or not
""",
    "all_one_shape": """
Q! are all {shapes} the same [shape|kind]<in>
Q are all the {shapes} [of the same|of one|of one and the same] [kind|shape|form|type]<in>
Q are they all the same [shape|kind|form|type]
Q are they all [of|] [the same|one] [shape|kind|type]
Q do [they|all of them|the {shapes}|all {shapes}] [share|have] [a|one|the same|a single] [shape|form]
Q does [each|every] {only} have the same [shape|form]<in>
Q is [every|each] {only} [of the|the] same [kind|shape|type]<in>
Q is everything the same [shape|form|kind]<in>
Q same [shape|shapes|kind of shape]
Q all the same [shape|shapes|kind]
Q is there only one [kind|type] of {only}<in>
Q do the {shapes} [match in shape|have equal forms|look alike in shape]
Q are the [shapes|forms] [all |][the same|equal|identical]<in>
E whether [all|all the|the] {shapes} [have|share] the same [shape|form]
E whether all {shapes} are of the same kind
E if they are all the same shape
I check whether all {shapes} have the same [shape|form]
I [say|tell me] whether they are all of one kind
F all of one kind
F one kind of shape or more
F same shape or not
""",
    "two_colours": """
Q! [are|do] the {one} and the {other} [the same {colour}|have the same {colour}]
Q are the {one} and the {other} [of|in] [the same|one|one and the same] {colour}
Q does the {one} have the same {colour} as the {other}
Q is the {one} the same {colour} as the {other}
Q is the {one} [as {colour}ed as|{colour}ed like|painted like|of the {colour} of] the {other}
Q do the {one} and the {other} [share|match in|agree in] {colour}
Q same {colour}, the {one} and the {other}
Q is the {colour} of the {one} [the same as|that of|equal to] [the {other}|that of the {other}]
Q are both the {one} and the {other} [of one|of the same|in one] {colour}
Q do the {one} and the {other} [look alike|match] in {colour}
Q have the {one} and the {other} [the same|one] {colour}
E whether the {one} and the {other} have the same {colour}
E if the {one} is the same {colour} as the {other}
I compare the {colour}s of the {one} and the {other}
I compare the {colour} of the {one} with that of the {other}
I [check|say|tell me] whether the {one} and the {other} have the same {colour}
F the {one} and the {other}: same {colour}
F same {colour} for the {one} and the {other}
""",
    "two_shapes": """
Q! [are|do] the {one} and the {other} [the same shape|have the same shape]
Q are the {one} and the {other} [of the same|of one|of one and the same] [kind|shape|form|type]
Q does the {one} have the same [shape|form] as the {other}
Q is the {one} the same [shape|kind|form] as the {other}
Q is the {one} [shaped like|of the kind of|formed like|of the shape of] the {other}
Q do the {one} and the {other} [share|match in|agree in] [shape|form]
Q same shape, the {one} and the {other}
Q is the shape of the {one} [the same as|that of|equal to] [the {other}|that of the {other}]
Q are both the {one} and the {other} of [one|the same] [kind|shape]
Q have the {one} and the {other} [the same|one] [shape|form]
E whether the {one} and the {other} have the same [shape|form]
E if the {one} is the same shape as the {other}
I compare the shapes of the {one} and the {other}
I compare the shape of the {one} with that of the {other}
I [check|say|tell me] whether the {one} and the {other} are the same shape
F the {one} and the {other}: same shape
F same shape for the {one} and the {other}
""",
    "odd_one": """
Q! which [one |{only} |]is the odd one out<in>
Q what is the odd one out<in>
Q which {only} is [different|unlike the others|not like the others|the different one]<in>
Q which {only} [differs|is different] from [the others|the rest|all others|all the others]<in>
Q which one [differs|is different|is not the same|is unlike the rest]<in>
Q which [one|{only}] does not [belong|fit|fit in|belong here|match the others]<in>
Q which [one|{only}] [doesn't|does not] [fit in with|go with|match] the [others|rest]
Q what [does not belong|doesn't fit|is different here|stands out]<in>
Q which [one|{only}] [stands out|is the exception|is the outlier|sticks out]<in>
Q who is the odd one out<in>
Q is there [an odd one out|a {only} that is different], and which
Q which of [them|the {shapes}|these] is [the odd one|different|not like the rest]
Q [one|one {only}] is [different|not like the others], which
I find the [odd one out|odd one|{only} that is different|outlier|exception|one that does not belong]<in>
I [name|point out|spot|pick|pick out|identify|tell me] the [odd one out|odd one|{only} that is different|one that differs]
I tell me which [one|{only}] [differs|is different|is the odd one out|does not fit]
E which [one|{only}] [is the odd one out|is different|differs from the others|does not belong]
E what does not fit<in>
N the odd one out<in>
N the {only} that [is different|differs|is not like the others|does not belong]<in>
F odd one out
F the odd one
F the one that [differs|does not fit|is different]
""",
    "common_shape": """
Q! [which|what] shape [is|are] [the most common|most common|there most of]<in>
Q [which|what] shape is the most common<in>
Q what is the most common shape<in>
Q which shape [occurs|appears|is there|is shown|do you see] [most often|the most|most|most frequently]<in>
Q what shape [occurs|appears|is drawn] [most often|the most|most|most frequently]<in>
Q which [kind|type] of shape [is|is there] [most common|the most common|most frequent|most of]<in>
Q which kind of shape [occurs|appears] most often<in>
Q of [which|what] shape are there [the most|most|more than of any other]<in>
Q what [is there most of|do you see most of|are most of them|are most of the {shapes}]<in>
Q what kind of {only} [are there most of|is there most of|is most common]<in>
Q which shape [dominates|is in the majority|wins in number|is the most frequent|is most numerous]<in>
Q which shape [has|have] the [highest count|largest number|most copies]<in>
I name the most [common|frequent|numerous] [shape|kind of shape]<in>
I tell me [which shape is most common|which shape there is most of|the most common shape]<in>
I find the shape that [occurs|appears] most often<in>
I find the [most common|most frequent] shape<in>
E which shape [is the most common|there are most of|occurs most often|is most frequent]
N the most [common|frequent] [shape|kind of shape]<in>
N the shape that [occurs|appears] [most often|most]<in>
F most [common|frequent] shape
F most common kind of {only}
""",
    "common_colour": """
Q! [which|what] {colour} [is|are] [the most common|most common|there most of]<in>
Q [which|what] {colour} is the most common<in>
Q what is the most common {colour}<in>
Q which {colour} [occurs|appears|is used|is shown|do you see] [most often|the most|most|most frequently]<in>
Q what {colour} [occurs|appears|is used] [most often|the most|most|most frequently]<in>
Q which {colour} do [most|most of the] {shapes} have<in>
Q what {colour} are [most|most of the] {shapes}<in>
Q what {colour} are most of them
Q of [which|what] {colour} are there [the most|most|more than of any other] {shapes}<in>
Q which {colour} [dominates|is in the majority|is the most frequent|is most used]<in>
Q which {colour} [has|have] the [highest count|largest number|most {shapes}]<in>
I name the most [common|frequent|used] {colour}<in>
I tell me [which {colour} is most common|the most common {colour}]<in>
I find the {colour} that [occurs|appears|is used] most often<in>
E which {colour} [is the most common|most {shapes} have|occurs most often|is most frequent]
N the most [common|frequent] {colour}<in>
N the {colour} [of most|that most of the] {shapes}[ have|]<in>
F most [common|frequent|used] {colour}
F {colour} of most {shapes}
""",
    "count_and_colour": """
Q! how many {things} are there and what {colour} are they
Q how many {things} [do you see|can you see|are shown|are there]<in> and [what|which] {colour} are they
Q how many {things} are there<in>, and [what|which] {colour}s do they have
Q how many {things} are there<in>, and of [what|which] {colour}s
Q how many {things} are there<in>, and in [what|which] {colour}s
Q how many {things} and [what|which] {colour}s
Q how many {things} and in [what|which] {colour}s
Q how many {things} [are there|do you see|can you count]<in> and what are their {colour}s
Q what is the number of {things}<in> and what are their {colour}s
Q what {colour} are the {things} and how many are there
Q [what|which] {colour}s do the {things} have and how many [of them|] are there
Q of which {colour}s are the {things}, and how many of them are there
I count the {things} and [name|give|tell me|say|list] their {colour}s
I count the {things}<in>, and [say|tell me] [what|which] {colour} they are
I tell me how many {things} there are and [what|which] {colour} they [are|have]
I give [me|] the number of {things} and their {colour}s
I name the number and the {colour}s of the {things}
E how many {things} there are and what {colour} they are
E how many {things} there are, and in which {colour}s
N the number of {things} and their {colour}s
N the number and {colour}s of the {things}
F number and {colour}s of the {things}
F {things}: how many, and which {colour}s
""",
    "is_blank": """
Q! is [the|this|that|my] {image} [blank|empty]
Q is it [blank|empty]
Q is [the|this] {image} [completely |totally |just |really |]blank
Q is there [nothing|really nothing] [in|on] [the|this|that] {image}
Q is [the|this] {image} [a blank one|without anything|free of shapes|just background]
Q is [the|this] page [blank|empty]
Q is this [a blank|an empty] {image}
Q did I [send|upload|give] [you |][a blank|an empty] {image}
Q do you see [a blank|an empty] {image}
Q is [the|this] {image} [devoid of shapes|bare]
E whether [the|this] {image} is [blank|empty]
E if it is [blank|empty]
I check whether [the|this] {image} is [blank|empty]
F [blank|empty]
F blank or not
""",
    "is_anything": """
Q! is there anything [in|on] [the|this|that|my] {image}
Q is anything [there|shown|drawn|visible|to be seen]<in>
Q is there [something|anything] [to see|at all|drawn|visible|there]<in>
Q do you see [anything|something|anything at all]<in>
Q can you see [anything|something|anything at all]<in>
Q does [the|this] {image} [show|contain|have] [anything|something]
Q are there [any {shapes}|any {shapes} at all]<in>
Q do you see any {shapes}<in>
Q has anything been drawn<in>
Q did [they|someone|I] draw anything<in>
E whether there is anything [in|on] [the|this] {image}
E if you see anything<in>
I look whether there is anything<in>
I check if anything is [shown|there|drawn]<in>
F anything [there|here|at all]
F any {shapes}
""",
}
