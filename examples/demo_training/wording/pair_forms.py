"""Forms of questions about two pictures."""

from __future__ import annotations

PAIR_FORMS = {
    "more_shapes": """
Q [what|which] [picture|image|one] has more [shapes|objects|things]
Q [what|which] [picture|image] [shows|contains|includes|displays|holds] more [shapes|objects|things]
Q which of the [two|two pictures|pictures|two images|images] has [more|the most] [shapes|objects|things]
Q in which [picture|image] [do you see|are there|can you see|can you count] more [shapes|objects|things]
Q where [do you see|are there|are] more [shapes|objects|things]
Q which [picture|image|one] has the [larger|greater|higher|bigger] number of [shapes|objects|things]
Q where is the number of [shapes|objects] [larger|higher|greater]
Q does the first or the second [picture|image] have more [shapes|objects|things]
Q are there more [shapes|objects|things] in the first or in the second [picture|image]
Q which [picture|image] is fuller
I name the [picture|image] with more [shapes|objects|things]
I tell me which [picture|image|one] has more [shapes|objects|things]
I compare the number of [shapes|objects|things] in [the|both] [pictures|images]
I count the [shapes|objects] in both [pictures|images] and say which has more
E which [picture|image|one] has [more|the most] [shapes|objects|things]
E in which [picture|image] there are more [shapes|objects|things]
N the [picture|image] with [more|the most] [shapes|objects|things]
F more [shapes|objects|things]: which [picture|image]
""",
    "fewer_shapes": """
Q [what|which] [picture|image|one] has fewer [shapes|objects|things]
Q [what|which] [picture|image] [shows|contains|includes] fewer [shapes|objects|things]
Q which of the [two|two pictures|pictures|two images] has [fewer|the fewest] [shapes|objects|things]
Q in which [picture|image] [do you see|are there|can you see] fewer [shapes|objects|things]
Q which [picture|image|one] has the [smaller|lower] number of [shapes|objects|things]
Q where are there fewer [shapes|objects|things]
Q does the first or the second [picture|image] have fewer [shapes|objects|things]
I name the [picture|image] with fewer [shapes|objects|things]
I tell me which [picture|image|one] has fewer [shapes|objects|things]
E which [picture|image|one] has [fewer|the fewest] [shapes|objects|things]
N the [picture|image] with [fewer|the fewest] [shapes|objects|things]
F fewer [shapes|objects|things]: which [picture|image]
""",
    "same_shape": """
Q is the shape the same in [both|the two] [pictures|images]
Q is it the same shape [in both|in both pictures|in the two images|twice|both times]
Q do [both|the two|both the] [pictures|images] [show|have|contain] the same shape
Q are the [two shapes|shapes] [the same|equal|identical in form|alike in shape]
Q do [both|the two] [objects|things] have the same [shape|form]
Q are [both|the two] [objects|things] of the same [shape|form]
Q does the shape [differ|change] or is it the same
Q are these the same shape
Q is the shape in the first [picture|image] the same as in the second
Q do the shapes [match|agree]
Q are [the two|both] the same shape
Q is there the same shape in both
Q do we see the same shape [in both|in both pictures|twice]
I compare the shapes[| in the two pictures| of both images]
I check [if|whether] the shape is the same[| in both pictures]
I tell me [if|whether] both [pictures|images] show the same shape
E [if|whether] [the shape is the same|both pictures show the same shape|the shapes are the same|it is the same shape]
F same shape
F same shape in both
F same shape or not
""",
    "same_colour": """
Q is the {colour} the same in [both|the two] [pictures|images]
Q is it the same {colour} [in both|in both pictures|in the two images|twice|both times]
Q do [both|the two] [shapes|objects|things] have the same {colour}
Q are [both|the two] [shapes|objects|things] [the same {colour}|of the same {colour}|equal in {colour}]
Q are the [two {colour}s|{colour}s] [the same|equal|identical]
Q do [both|the two] [pictures|images] [show|have|use] the same {colour}
Q does the {colour} [differ|change] or is it the same
Q are these the same {colour}
Q is the {colour} in the first [picture|image] the same as in the second
Q do the {colour}s [match|agree]
Q is there the same {colour} in both
Q do the [shapes|objects] have matching {colour}s
I compare the {colour}s[| in the two pictures| of both shapes| of both images]
I check [if|whether] the {colour} is the same[| in both pictures]
I tell me [if|whether] both [shapes|objects] have the same {colour}
E [if|whether] [the {colour} is the same|both have the same {colour}|the {colour}s are the same|it is the same {colour}]
F same {colour}
F same {colour} in both
F same {colour} or not
""",
    "describe_nth": """
Q what is in [the {nth} {pic}|{pic_n}]
Q what [do|can] you see in [the {nth} {pic}|{pic_n}]
Q what does [the {nth} {pic}|{pic_n}] [show|contain|depict|look like]
Q what is [shown|depicted|drawn|visible|there] in [the {nth} {pic}|{pic_n}]
Q in [the {nth} {pic}|{pic_n}], what [do you see|is there|can you see]
Q what [shapes|objects|things] are in [the {nth} {pic}|{pic_n}]
Q what about the contents of the {nth} {pic}
I describe [the {nth} {pic}|{pic_n}|the {nth} one|only the {nth} {pic}]
I tell me what [is in|you see in|is shown in] [the {nth} {pic}|{pic_n}]
I tell me about the {nth} {pic}
I describe what you see in the {nth} {pic}
I [caption|summarize] the {nth} {pic}
I say what the {nth} {pic} shows
I look at [the {nth} {pic}|{pic_n}] and describe it
E what [is in|you see in] [the {nth} {pic}|{pic_n}]
E what [the {nth} {pic}|{pic_n}] [shows|contains]
N a description of [the {nth} {pic}|{pic_n}]
N the contents of the {nth} {pic}
F [the {nth} {pic}|{pic_n}]
F the {nth} {pic}: what does it show
""",
    "again_nth": """
F! and the {nth} [one|picture|image]
F! what about the {nth} [one|picture|image]
F how about the {nth} [one|picture|image]
F and in the {nth} [one|picture|image]
F same for the {nth} [one|picture|image]
F and for the {nth} [one|picture|image]
F now the {nth} [one|picture|image]
F the {nth} [one|picture|image] too
F and the other [one|picture|image]
F what about the other [picture|image]
""",
    "describe_both": """
I! describe [both|the two|these two|both of the] [pictures|images]
I describe [both|the pictures|the images|each picture|each image]
I compare [the two|both|these|the] [pictures|images]
I tell me what [is in|you see in] [both|the two] [pictures|images]
I describe the pictures one [by one|after the other]
I say what each [picture|image] shows
I list what is in each [picture|image]
Q what is in [the two|these two|both|the|these] [pictures|images]
Q what do you see in [the two|these two|both|the|these] [pictures|images]
Q what do [the|these|the two|both] [pictures|images] show
Q what does each [picture|image] show
Q what is in each [picture|image]
Q how do the [two |][pictures|images] differ
Q what is the difference between the [two |][pictures|images]
Q what is different
E what [is in|you see in] [both|the two] [pictures|images]
E how the [pictures|images] differ
N a description of [both|the two|each] [pictures|images]
N a comparison of the [pictures|images]
F both [pictures|images]
F [the|any] differences between the [pictures|images]
I! describe both [pictures|images]
I describe [the first and the second|the first and second] [picture|image|one]
I describe [one|the first] [picture|image|] and then the other[| one]
I tell me [about|everything about] [both|the two|these two|these] [pictures|images]
I tell me what [the two|both|these] [pictures|images] [show|contain]
I tell me [how the pictures differ|the differences|what is different|the difference]
I tell me what each [picture|image|of them|one] [shows|contains]
I [list|name|give|show|find|spot|point out|explain] [the|all|all the|any] differences[| between the pictures| between the two| between them]
I give me [a description|a caption|captions|a summary] [of|for] [both|each of the|the two] [pictures|images]
I caption [both|the two|these|each of the] [pictures|images]
I summarize [both|the two|these] [pictures|images]
I look at [both|the two] [pictures|images] and [describe them|tell me what you see|say what they show]
I compare [them|the first picture with the second|the first to the second|picture 1 with picture 2|both]
I put [both|the two] [pictures|images] into words
I describe them[| both| one by one]
I describe everything in both [pictures|images]
Q what [can|do] [you|we|I] see in [both|the two|these|each of the] [pictures|images]
Q what [is|can be seen|is shown|is drawn] [in|on] [both|the two|these|each of the] [pictures|images]
Q what is in [the first and what is in the second|the first and the second] [picture|image|one]
Q what is in [them|each of them|each|each one]
Q what [shapes|objects|things] are in [the two|both|the|each of the] [pictures|images]
Q what does [the first|one] [picture |image |]show and what the [second|other]
Q what do they show
Q what differs [between the pictures|between the two|between them|here|]
Q what are the differences[| between the pictures| between the two images| between them]
Q what [is different|changes|has changed] between the [two |][pictures|images]
Q how [are|do] the [two |][pictures|images] [different|differ from each other]
Q how is the [second|first] [picture|image] different from the [first|second]
Q how do they [differ|compare]
Q how would you describe [both|the two|these two] [pictures|images]
Q do the [pictures|images] differ, and how
E what [each|both|the two] [picture shows|pictures show|images show|of them show]
E what is different[| between the pictures| between the two]
E what the differences are
E what both [pictures|images] [show|contain]
N the contents of [both|the two|each of the] [pictures|images]
N the [difference|differences][| between the pictures| between the two| between them]
N [captions|a caption|descriptions] [for|of] both [pictures|images]
F both[| of them|, please]
F both [pictures|images], please
F [differences|difference|what is different]
F [description|descriptions|summary] of both[| pictures| images]
F [each|both] of the [pictures|images]
F the two [pictures|images]
F first and second [picture|image]
""",
    "count_nth": """
Q how many [shapes|objects|things] are [there|] in [the {nth} {pic}|{pic_n}]
Q how many [shapes|objects|things] [do|can] you [see|count] in [the {nth} {pic}|{pic_n}]
Q how many [shapes|objects|things] does [the {nth} {pic}|{pic_n}] [show|have|contain]
Q what is the number of [shapes|objects|things] in the {nth} {pic}
Q in the {nth} {pic}, how many [shapes|objects|things] are there
I count the [shapes|objects|things] in [the {nth} {pic}|{pic_n}]
I tell me how many [shapes|objects] are in the {nth} {pic}
E how many [shapes|objects|things] are in [the {nth} {pic}|{pic_n}]
N the number of [shapes|objects|things] in [the {nth} {pic}|{pic_n}]
F [shapes|objects] in the {nth} {pic}
""",
}
