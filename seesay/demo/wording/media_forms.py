"""Forms of questions about written text, charts, clips and pairs of pictures."""

from __future__ import annotations

MEDIA_FORMS = {
    "read": """
Q what does it say<in>
Q what does [this|that|the text|the {image}] say
Q what is written [here|there|in it|on it|in the {image}|on the {image}|down|in this {image}]
Q what is [the|this] text<in>
Q what [text|writing|inscription|lettering] [do you see|is there|is shown|can you see|is visible|is this]<in>
Q what [text|writing] does the {image} [contain|show|have]
Q which [text|letters|writing] [do you see|can you see|are there|is shown]<in>
Q what [can|do] you read<in>
Q what [can be read|is there to read|stands written|is printed|is spelled out|has been written]<in>
Q how does the [text|writing|inscription] read
Q what did [someone|they|I|my friend] write<in>
Q which [characters|letters] are [written|shown|printed]<in>
Q what does the [writing|inscription|lettering|sign] say
I read [this|it|that|the text|the writing|the {image}|the inscription]<in>
I read [this|it|the text] [out|out loud|aloud|to me|for me]
I read what [it says|is written|is there|you see]<in>
I tell me what it says
I tell me what [is written|you can read|the text says|the text is]<in>
I transcribe [this|it|the text|the {image}|what is written]<in>
I [copy|type out|write down|extract|recognize|output|return|give me] the text<in>
I do OCR on [this|the] {image}
I write down what [is written|it says|you read]<in>
I spell [it|this|the text] out
E what [it says|is written|this says|the text says|is written here|the {image} says|can be read|you read]<in>
E what the [text|writing] [is|says]<in>
N the [text|writing|written text|words or digits]<in>
F [text|OCR|transcription]
F text in the {image}
F the text, please
""",
    "read_word": """
Q [what|which] word is [this|it|that|shown|written|written here|printed]<in>
Q what is the word<in>
Q [what|which] word do you [see|read]<in>
Q [what|which] word can you [see|read]<in>
Q [what|which] word does the {image} [show|contain|have]
Q how does the word read
Q [what|which] word [has been|was] written<in>
I read the word<in>
I read me the word<in>
I [name|give me|write down|tell me|type|state] the word<in>
I tell me [what|which] word [it is|you see|is written]<in>
E [what|which] word [it is|this is|is written|you see|is shown]<in>
N the [word|written word]<in>
F word
F the word, please
""",
    "read_number": """
Q [what|which] number is [this|it|that|shown|written|written here|printed]<in>
Q what is the number<in>
Q [what|which] number do you [see|read]<in>
Q [what|which] number can you [see|read]<in>
Q [what|which] number does the {image} [show|contain|have]
Q [what|which] digits [are there|do you see|are written|are shown]<in>
Q what are the digits<in>
Q [what|which] number [has been|was] written<in>
I read the [number|digits]<in>
I read me the number<in>
I [name|give me|write down|tell me|type|state] the [number|digits]<in>
I tell me [what|which] number [it is|you see|is written]<in>
E [what|which] number [it is|this is|is written|you see|is shown]<in>
N the [number|digits|written number]<in>
F number
F the number, please
""",
    "says": """
Q does it say {quoted}
Q does the [text|{image}|word|writing] say {quoted}
Q is {quoted} written [here|there|in the {image}]
Q does it read {quoted}
Q is the text {quoted}
Q is this [the word|the text|] {quoted}
Q it says {quoted}, [right|correct|doesn't it]
Q is it [true|right|correct] that it says {quoted}
E [if|whether] it says {quoted}
""",
    "colour_of_text": """
Q what {colour} is the {noun}<in>
Q which {colour} [is|has] the {noun}<in>
Q what is the {colour} of the {noun}<in>
Q what {colour} does the {noun} have
Q in [what|which] {colour} is [it|the {noun}] [written|printed|drawn|set]
Q what {colour} are the letters or digits
Q what {colour} was used for the {noun}<in>
Q the {noun} is [what|which] {colour}
Q what {colour} is it written in
Q what {colour} is the [ink|writing|lettering|font]
I name the {colour} of the [{noun}|writing|ink]
I tell me the {colour} of the {noun}
I tell me [what|which] {colour} the {noun} [is|has]
I look at the {noun} and name its {colour}
I [identify|state|give|report] the {colour} of the {noun}
E [what|which] {colour} the {noun} [is|has]
E [what|which] {colour} it is written in
N the {colour} of the [{noun}|writing|ink]
F {colour} of the {noun}
F {noun} {colour}
""",
    "largest_bar": """
Q [what|which] [bar|one|label|column|item|entry] is the [largest|biggest|highest|tallest|longest]<in>
Q [what|which] is the [largest|biggest|highest|tallest|longest] [bar|column|of the bars|one|entry]<in>
Q [what|which] [bar|label|one|item|column|entry|category] has the [largest|highest|biggest|greatest] value<in>
Q [what|which] [bar|label|one|item|column] [shows|reaches] the [largest|highest|greatest] value
Q [what|which] [bar|label|item|column] [is|stands|goes] [highest|tallest|the furthest up]
Q where is the [maximum|highest value|largest value|peak]<in>
Q which [bar|label|item] has the most
Q who [has|got] the [most|highest value|largest value]
Q what is the [label|name] of the [largest|biggest|highest|tallest] bar
Q of all [the |]bars, which is [the |][largest|biggest|highest|tallest]
Q which [bar|item|label] [wins|leads|is on top|comes first|is in first place]
Q [what|which] [bar|one] is [higher|taller|bigger|larger] than all the others
Q which has the [highest|largest|greatest|biggest] value
Q which is the maximum<in>
I name the [largest|biggest|highest|tallest|longest] [bar|column|one]<in>
I [find|identify|tell me|point out|show me] the [largest|biggest|highest|tallest] [bar|column|one|value]<in>
I tell me which [bar|label|one|item] [is the largest|is the biggest|has the highest value|is the tallest|is the highest]
I name the [label|bar|item] with the [largest|highest|greatest|biggest] value
E which [bar|label|one|item] [is the largest|is the biggest|has the highest value|is the tallest|is highest|has the most]
E what the [largest|biggest|highest|tallest] bar is
N the [largest|biggest|highest|tallest] [bar|column|one]<in>
N the [bar|label|item] with the [largest|highest|greatest] value
N the maximum<in>
F [largest|biggest|highest|tallest] bar
F max[imum|]
F [bar|label|item] with the [highest|largest] value
""",
    "smallest_bar": """
Q [what|which] [bar|one|label|column|item|entry] is the [smallest|lowest|shortest]<in>
Q [what|which] is the [smallest|lowest|shortest] [bar|column|of the bars|one|entry]<in>
Q [what|which] [bar|label|one|item|column|entry|category] has the [smallest|lowest|least] value<in>
Q [what|which] [bar|label|one|item|column] [shows|reaches] the [smallest|lowest|least] value
Q [what|which] [bar|label|item|column] [is|stands] [lowest|shortest|the least high]
Q where is the [minimum|lowest value|smallest value|low point]<in>
Q which [bar|label|item] has the least
Q who [has|got] the [least|lowest value|smallest value]
Q what is the [label|name] of the [smallest|lowest|shortest] bar
Q of all [the |]bars, which is [the |][smallest|lowest|shortest]
Q which [bar|item|label] [loses|is at the bottom|comes last|is in last place]
Q [what|which] [bar|one] is [lower|shorter|smaller] than all the others
Q which has the [lowest|smallest|least] value
Q which is the minimum<in>
I name the [smallest|lowest|shortest] [bar|column|one]<in>
I [find|identify|tell me|point out|show me] the [smallest|lowest|shortest] [bar|column|one|value]<in>
I tell me which [bar|label|one|item] [is the smallest|is the lowest|has the lowest value|is the shortest]
I name the [label|bar|item] with the [smallest|lowest|least] value
E which [bar|label|one|item] [is the smallest|is the lowest|has the lowest value|is the shortest|has the least]
E what the [smallest|lowest|shortest] bar is
N the [smallest|lowest|shortest] [bar|column|one]<in>
N the [bar|label|item] with the [smallest|lowest|least] value
N the minimum<in>
F [smallest|lowest|shortest] bar
F min[imum|]
F [bar|label|item] with the [lowest|smallest] value
""",
    "bar_value": """
Q what is the value of [the bar |bar ||]{label}<in>
Q [what|which] value does [the bar |bar ||]{label} [have|show|reach]<in>
Q how [much|high|tall|large|big] is [the bar |bar ||]{label}<in>
Q how [much|many] does [the bar |bar ||]{label} [have|show|reach|get]
Q what [number|value|figure] [is|stands|is written] [above|over|on|on top of|at] [the bar |bar ||]{label}
Q what [number|value|figure] belongs to {label}
Q [what|which] number does [the bar |bar |]{label} [have|show|reach]
Q what does [the bar |bar |]{label} [show|read|say|stand at|have|amount to]
Q {label} [has|is|shows|reaches] [what|which] value
Q how far up does [the bar |]{label} go
Q what is {label}
Q what about the value of {label}
Q what is the height of [the bar |bar ||]{label}<in>
Q what is {label}'s [value|number]
I read the [value|number] of [the bar |bar ||]{label}<in>
I [name|give|state|report|tell me|find|look up] the [value|number] [of|for] [the bar |bar ||]{label}<in>
I tell me how [much|high|tall] [the bar |]{label} is
I read [off|] {label}
E what [value|number] [the bar |]{label} has
E how [much|high|tall|large] [the bar |]{label} is
E what the value of [the bar |bar |]{label} is
N the [value|number|height|figure] [of|for] [the bar |bar ||]{label}<in>
N {label}'s [value|number]
F value of {label}
F {label} value
F {label}
F [bar|the bar] {label}
""",
    "bar_of_value": """
Q [what|which] [bar|label|one|item|column] has [the value|a value of|the number] {value}<in>
Q [what|which] [bar|label|one|item] is {value}
Q [what|which] [bar|label|item] [shows|reaches|stands at] {value}
Q where is the value {value}
Q whose value is {value}
Q to [what|which] [bar|label] does {value} belong
I name the [bar|label|item] [with|that has] [the value|a value of] {value}
I [find|tell me] the [bar|label] with the value {value}
E [what|which] [bar|label|item] has the value {value}
N the [bar|label] with [the|a] value [of |]{value}
F value {value}: which [bar|label]
""",
    "bar_is_larger": """
Q! is {one} [larger|bigger|higher|taller|greater|more] than {other}<in>
Q is the bar {one} [larger|bigger|higher|taller] than the bar {other}
Q does {one} have [a larger|a higher|a greater|more] value than {other}
Q does {one} have more than {other}
Q would you say {one} is [larger|bigger|higher] than {other}
Q is it [true|correct] that {one} is [larger|bigger|higher] than {other}
Q is the value of {one} [larger|higher|greater] than that of {other}
Q {one} is [larger|higher|bigger] than {other}, [right|isn't it]
E [if|whether] {one} is [larger|bigger|higher] than {other}
""",
    "larger_bar_of_two": """
Q! [what|which] is [larger|bigger|higher|taller|more], {one} or {other}
Q [what|which] [bar|one] is [larger|bigger|higher|taller], {one} or {other}
Q is {one} or {other} [larger|bigger|higher|taller]
Q which has the [larger|higher|greater] value, {one} or {other}
Q who has more, {one} or {other}
Q between {one} and {other}, which is [larger|higher|bigger]
E which is [larger|bigger|higher], {one} or {other}
""",
    "count_bars": """
Q how many bars are there<in>
Q how many [bars|columns] does the {image} [have|show|contain]
Q how many [bars|columns] [do|can] you [see|count|find|spot]<in>
Q how many [bars|columns] are [shown|drawn|visible|in the {image}|in the chart|in total]
Q what is the number of [bars|columns]<in>
Q how many [values|labels|entries|items|categories] are there<in>
Q how many [values|labels|entries|items|categories] does the {image} [have|show]
Q the {image} has how many bars
I count [the|all the|all] [bars|columns]<in>
I count how many bars there are
I tell me [how many bars there are|the number of bars]
I [state|give|report|name] the [number|count] of bars<in>
E how many [bars|columns] [there are|the {image} has|you see|you count|are shown]
N the [number|count] of [bars|columns]<in>
F [number of|how many] bars
F bars: how many
F count the bars
""",
    "bar_colour": """
Q! what {colour} is [the bar |bar ||]{label}<in>
Q which {colour} [is|has] [the bar |bar |]{label}
Q what is the {colour} of [the bar |bar ||]{label}<in>
Q what {colour} does [the bar |bar |]{label} have
Q in [what|which] {colour} is [the bar |bar |]{label} [drawn|painted|shown]
Q what {colour} is the [bar of|bar above|bar for|column of] {label}
Q the bar {label} is [what|which] {colour}
I name the {colour} of [the bar |bar |]{label}
I tell me [what {colour} the bar {label} is|the {colour} of the bar {label}]
E [what|which] {colour} [the bar |]{label} [is|has]
N the {colour} of [the bar |bar |]{label}
F {colour} of {label}
""",
    "list_bars": """
Q what are the values<in>
Q [what|which] values [are shown|are there|do you see|does the {image} show|can you read]<in>
Q [what|which] [bars|labels and values] [are there|do you see|are shown]<in>
Q what [data|numbers|figures] does the {image} [show|contain|present]
Q what are the [numbers|data|figures]<in>
Q what is the value of each [bar|label]<in>
I list [all the|all|the] [values|bars|bars and their values|labels and values]<in>
I read [all the|all|the] [values|bars|numbers]<in>
I [name|give me|read out|write down|tell me|state] [all the|all|the] [values|bars and their values|labels and values]<in>
I go through the bars [one by one|and read their values]
I turn [this|the] {image} into [a list|text|numbers]
I extract the [data|values|numbers] [from|of] [this|the] {image}
E [what|which] values [there are|the {image} shows|the bars have]
E what the values [of the bars |]are
N the [values|data|numbers] [in|of] [the|this] {image}
N [all the|a list of the] [values|bars]
F [all values|the values|data]
""",
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
I [name|give|state|tell me|determine] the direction [of|in which] [the {thing}|the {thing} moves]
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
I describe [both|the two|these two|both of the] [pictures|images]
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
    "again_bar": """
F! and {label}
F! what about {label}
F how about {label}
F and the bar {label}
F what about the bar {label}
F and for {label}
F same for {label}
F now {label}
F ok, and {label}
F {label} too
F and what about {label}
""",
    "again_largest_bar": """
F! and the [largest|highest|biggest|tallest]
F what about the [largest|highest|biggest|tallest] [one|bar]
F and the [largest|highest|tallest] [one|bar]
F and which is the [largest|highest|biggest]
F how about the [largest|highest] one
F and the maximum
F now the [largest|highest] one
""",
    "again_smallest_bar": """
F! and the [smallest|lowest|shortest]
F what about the [smallest|lowest|shortest] [one|bar]
F and the [smallest|lowest|shortest] [one|bar]
F and which is the [smallest|lowest]
F how about the [smallest|lowest] one
F and the minimum
F now the [smallest|lowest] one
""",
}
