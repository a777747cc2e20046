"""Forms of questions about where shapes are, how large they are, and whether they are there."""

from __future__ import annotations

PLACE_FORMS = {
    "place_of": """
Q where is the {thing}<in>
Q where [do|can] you <see> the {thing}<in>
Q where in the {image} is the {thing}
Q where [has been|was|did they] [drawn|put|draw|place] the {thing}
Q where can [I|one|we] find the {thing}<in>
Q where exactly is the {thing}
Q where is the {thing} [located|placed|positioned|drawn|to be found|situated]<in>
Q in [which|what] [part|area|region|place|corner or part] of the {image} is the {thing}
Q [which|what] part of the {image} [is the {thing} in|contains the {thing}|has the {thing}|shows the {thing}]
Q what is the [position|location|place] of the {thing}<in>
Q at [which|what] [place|position|spot] is the {thing}
Q whereabouts is the {thing}<in>
Q on [which|what] [side|part|area] of the {image} is the {thing}
Q the {thing} is where
Q where does the {thing} [sit|lie|stand|appear]<in>
Q where should I look for the {thing}<in>
I find the {thing}<in>
I locate the {thing}<in>
I tell me where the {thing} is
I tell me the [position|location|place] of the {thing}<in>
I [say|describe|explain|state|point out|show me] where the {thing} is<in>
I [give|state|name|describe|report] the [position|location|place] of the {thing}<in>
E where [the {thing} is|the {thing} is located|I can find the {thing}|to find the {thing}|you see the {thing}]
E in which part of the {image} the {thing} is
N the [position|location|place] of the {thing}<in>
F [position|location] of the {thing}
F the {thing}: where
F {thing} where
F where, the {thing}
""",
    "place_it": """
Q where is it<in>
Q and where is it
Q where [exactly|in the {image}] is it
Q where can I find it
Q where is [that|that one|it located|it placed]
Q in which part of the {image} is it
Q what is its [position|location|place]
I tell me where it is
I [state|name|give|describe] its [position|location|place]
E where it is
N its [position|location]
F and its [position|location|place]
F where
Q where does it [sit|lie|stand|appear]<in>
Q whereabouts is it
Q where [do|can] you see it
Q [in|on] which [part|side|area] is it
Q [in|at] which place is it
Q what part of the {image} is it in
Q and where can [I|one] find it
Q and where [does it lie|is it located|do you see it]
Q where should I look [for it|]
I [locate|find] it
I [say|show me|point out|describe] where it is
E where it is [located|placed|to be found|in the {image}]
E where to find it
N its [place|whereabouts]
F and where
F its [position|location|place]
F where is that
F position
Q where [am I|are we] to look [for it|]
Q where do I [have to |need to |]look [for it|]
Q where would [I|one|you] [look for it|find it|see it|look]
Q where has it been [put|placed|drawn|painted]
Q where did [they|you|someone] [put|place|draw] it
I show me where [it is|to look|to find it]
I tell me where [to look|to find it|I find it|I can see it]
E where [to look|to find it|I can find it|it lies]
F where to [look|find it]
""",
    "at_side": """
Q what is {side}<in>
Q [what|which] [shape|object|thing] is {side}<in>
Q [what|which] [shape|object|thing|one] [do|can] you see {side}<in>
Q what [do|can] you <see> {side}<in>
Q what is [shown|drawn|there|located|visible|placed] {side}<in>
Q what is there {side}
Q {side}, what [is there|do you see|can you see]
Q what [appears|can be seen|can be found|lies|sits] {side}<in>
Q [what|which] thing is {side} of [the|this] {image}
Q what is {side} of [the|this] {image}
Q which one is {side}
I name [the shape|the object|what is|what you see|the thing] {side}<in>
I tell me what [is|you see|is shown|you find] {side}<in>
I describe [what is|the shape|the object|what you see|the thing] {side}<in>
I [say|identify|report] what is {side}<in>
I look {side} of the {image} and say what is there
E what [is|you see|can be seen|is drawn] {side}<in>
E which [shape|object|thing] is {side}
N the [shape|object|thing] {side}<in>
F the [shape|object|thing] {side}
F [shape|object|thing] {side}
F and {side}
""",
    "is_beside": """
Q is the {one} {relation} the {other}<in>
Q is the {one} [placed|located|positioned|drawn|somewhere|found|shown] {relation} the {other}
Q do you see the {one} {relation} the {other}
Q does the {one} [lie|sit|stand|appear] {relation} the {other}
Q can [the {one} be found|one find the {one}|you see the {one}] {relation} the {other}
Q is it [true|correct|right] that the {one} is {relation} the {other}
Q would you say [that |]the {one} is {relation} the {other}
Q the {one} is {relation} the {other}, [right|correct|isn't it]
Q am I right that the {one} is {relation} the {other}
Q is the position of the {one} {relation} the {other}
I [check|tell me] whether the {one} is {relation} the {other}
E [if|whether] the {one} [is|lies|is placed] {relation} the {other}
""",
    "what_is_beside": """
Q what is {relation} the {other}<in>
Q [what|which] [shape|object|thing] is {relation} the {other}<in>
Q what [do|can] you see {relation} the {other}
Q what [is there|lies|sits|is drawn|is shown|can be found|appears] {relation} the {other}
Q [what|which] [shape|object|thing] [do|can] you see {relation} the {other}
Q {relation} the {other}, what do you see
I name [the shape|what is|the object|what you see] {relation} the {other}
I tell me what is {relation} the {other}
I describe what is {relation} the {other}
E what [is|you see|lies] {relation} the {other}
N the [shape|object|thing] {relation} the {other}
F the [shape|object|thing] {relation} the {other}
""",
    "is_there": """
Q is there {thing}<in>
Q do you <see> {thing}<in>
Q can [you|I|we|one] <see> {thing}<in>
Q does the {image} [show|contain|have|include|depict] {thing}
Q is {thing} [shown|visible|present|there|drawn|to be seen|depicted]<in>
Q is {thing} in [the|this] {image}
Q is there [really|actually|by any chance] {thing}<in>
Q does {thing} [appear|show up|exist]<in>
Q did [someone|they|I|the artist] draw {thing}
Q has {thing} been drawn<in>
Q would you say there is {thing}<in>
Q is it [true|correct|right] that there is {thing}<in>
Q there is {thing}, [right|correct|isn't there]
Q have you [seen|found|spotted] {thing}<in>
Q am I right that there is {thing}<in>
Q is one of [them|the shapes|these things] {thing}
Q {thing} is in the {image}, [right|isn't it]
Q are you able to see {thing}<in>
Q is {thing} among the [shapes|objects|things]
I check [if|whether] there is {thing}<in>
I look for {thing}<in>. Is there one
I tell me [if|whether] there is {thing}<in>
E [if|whether] [there is|you see|you can see|the {image} shows|the {image} contains] {thing}
E [if|whether] {thing} is [there|in the {image}|visible|present]
F {thing}: yes or no
F any {bare_thing}
F is there any {bare_thing}
""",
    "largest_shape": """
Q [what|which] [shape|object|thing|one|figure|of them|of these] is the [biggest|largest]<in>
Q [what|which] is the [biggest|largest] [shape|object|thing|one|figure|of them|of all]<in>
Q what is the [biggest|largest] [shape|object|thing|figure]<in>
Q [what|which] [shape|object|thing] is [bigger|larger] than [all|] the others<in>
Q [what|which] [shape|object|thing] is the [most big|greatest in size|biggest of all|largest of all]
Q [what|which] [shape|object|thing] has the [largest|biggest|greatest] [size|area]<in>
Q [what|which] [shape|object|thing] [takes up|covers|fills] the most [space|room|area]<in>
Q of [all|] the [shapes|objects|things]<in>, which is the [biggest|largest]
Q is there a [biggest|largest] [shape|object|thing], and which
Q [what|which] was drawn [biggest|largest]<in>
Q which shape is [biggest|largest] [in size|by size|by area]
I name the [biggest|largest] [shape|object|thing|figure|one]<in>
I [find|identify|tell me|show me|point out|describe] the [biggest|largest] [shape|object|thing|figure|one]<in>
I tell me which [shape|object|thing|one] is [the |][biggest|largest]
I compare the sizes and name the [biggest|largest] [shape|one]
E [what|which] [shape|object|thing|one] is [the |][biggest|largest]<in>
E what the [biggest|largest] [shape|object|thing] is
N the [biggest|largest] [shape|object|thing|one|figure]<in>
F! [biggest|largest] [shape|object|thing|one]
F the [biggest|largest] one
F who is the [biggest|largest]
""",
    "smallest_shape": """
Q [what|which] [shape|object|thing|one|figure|of them|of these] is the [smallest|tiniest|littlest]<in>
Q [what|which] is the [smallest|tiniest] [shape|object|thing|one|figure|of them|of all]<in>
Q what is the [smallest|tiniest] [shape|object|thing|figure]<in>
Q [what|which] [shape|object|thing] is smaller than [all|] the others<in>
Q [what|which] [shape|object|thing] is the [least big|least large|smallest of all|tiniest of all]
Q [what|which] [shape|object|thing] has the [smallest|least] [size|area]<in>
Q [what|which] [shape|object|thing] [takes up|covers|fills] the least [space|room|area]<in>
Q of [all|] the [shapes|objects|things]<in>, which is the smallest
Q is there a smallest [shape|object|thing], and which
Q [what|which] was drawn [smallest|tiniest]<in>
Q which shape is smallest [in size|by size|by area]
I name the [smallest|tiniest] [shape|object|thing|figure|one]<in>
I [find|identify|tell me|show me|point out|describe] the [smallest|tiniest] [shape|object|thing|figure|one]<in>
I tell me which [shape|object|thing|one] is [the |]smallest
I compare the sizes and name the smallest [shape|one]
E [what|which] [shape|object|thing|one] is [the |][smallest|tiniest]<in>
E what the [smallest|tiniest] [shape|object|thing] is
N the [smallest|tiniest|littlest] [shape|object|thing|one|figure]<in>
F [smallest|tiniest] [shape|object|thing|one]
F the smallest one
F who is the smallest
""",
    "larger_of_two": """
Q [what|which] is [bigger|larger], the {one} or the {other}
Q [what|which] one is [bigger|larger]: the {one} or the {other}
Q is the {one} or the {other} [bigger|larger]
Q which of the two is [bigger|larger], the {one} or the {other}
Q which has the larger size, the {one} or the {other}
E which is [bigger|larger], the {one} or the {other}
""",
    "is_larger": """
Q! is the {one} [bigger|larger] than the {other}
Q is the {one} [of larger size|greater in size] than the {other}
Q would you say the {one} is [bigger|larger] than the {other}
Q is it [true|correct] that the {one} is [bigger|larger] than the {other}
Q does the {one} look [bigger|larger] than the {other}
Q the {one} is [bigger|larger] than the {other}, [right|isn't it]
E [if|whether] the {one} is [bigger|larger] than the {other}
""",
    "again": """
F! and the {thing}
F! what about the {thing}
F how about the {thing}
F and what about the {thing}
F and for the {thing}
F same [question |]for the {thing}
F the {thing} [too|as well|also]
F now the {thing}
F and how about the {thing}
F then the {thing}
F the {thing}
F what of the {thing}
F and now for the {thing}
F ok, and the {thing}
F do the same for the {thing}
F thanks, and the {thing}
F next, the {thing}
F and [concerning|regarding|with] the {thing}
F but what about the {thing}
F the {thing}, then
F and [again|once more] for the {thing}
F the same for the {thing}
F [good|great|fine], and the {thing}
F let us see the {thing}
F as for the {thing}
F and then the {thing}
F also the {thing}
F now what about the {thing}
F what is it for the {thing}
""",
    "again_other": """
F! and the other one
F! what about the other one
F how about the other one
F and the other [shape|object|thing]
F and the remaining one
F what about the other [shape|object|thing]
F and for the other one
F the other one
F same [question |]for the other one
F now the other one
F and what about the other
F ok, and the other one
F! and the [other|remaining] one
F and what about the [other|remaining|second] one
F what about the [remaining|second|last] [one|shape|object|thing]
F how about the [remaining|second|last|other] [one|shape|object|thing]
F and the [second|last] [one|shape|object|thing]
F and the remaining [shape|object|thing]
F and the [one|shape|thing] that [remains|is left]
F and [its neighbor|its companion|the rest]
F the [remaining|second|other] [one|shape|object|thing] [too|as well|also]
F [same|the same] for the [remaining|second|other] [one|shape|object|thing]
F now the [remaining|second] [one|shape|object|thing]
F now for the other [one|shape]
F then the [other|remaining] [one|shape]
F and [how|what] about the other [shape|object|thing]
F and the other
F what of the other [one|shape]
F ok, and the [remaining|second] one
F ok, what about the other one
F thanks, and the other one
F next, the other one
F the other [shape|object|thing]
F and for the [remaining|second] [one|shape]
F do the same for the [other|remaining] one
""",
    "again_count": """
F! and {things}
F what about {things}
F how about {things}
F and how many {things}
F! and the {things}
F and what about the {things}
F same for {things}
F ok, and {things}
F now {things}
F and for {things}
F {things} too
""",
    "again_largest": """
F! and the [biggest|largest]
F and the [biggest|largest] [one|shape]
F what about the [biggest|largest] [one|]
F how about the [biggest|largest]
F and which is the [biggest|largest]
F now the [biggest|largest] one
F the [biggest|largest] too
""",
    "again_smallest": """
F! and the smallest
F and the [smallest|tiniest] [one|shape]
F what about the smallest [one|]
F how about the smallest
F and which is the smallest
F now the smallest one
F the smallest too
""",
}
