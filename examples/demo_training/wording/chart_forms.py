"""Forms of questions about bar charts."""

from __future__ import annotations

CHART_FORMS = {
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
Q! [what|which] [bar|label] [has|shows] {value}
Q [what|which] [bar|column|label|one] is the one with {value}
Q [what|which] [bar|label|item|column] [is|stands] at {value}
Q [what|which] [bar|label|item|column] [comes|goes|gets|adds up] to {value}
Q [what|which] [bar|column|one] is {value} [high|tall]
Q [what|which] [bar|column|label|item] is [labeled|marked|annotated] with [the value|the number|] {value}
Q [what|which] [bar|column] carries the [number|value] {value}
Q above [what|which] [bar|label|column] [is|stands|do you see|is written] [the number|the value|] {value}
Q over [what|which] [bar|label|column] does it say {value}
Q at [what|which] [bar|label|column] [is|stands] [the number|the value|] {value}
Q where [do|can] you [see|read|find] [the number|the value|] {value}
Q where [does it say|is the number|is written] {value}
Q who [has|got|scored] {value}
Q {value} is the [value|number] of [what|which] [bar|label|item|column]
Q {value} belongs to [what|which] [bar|label|item|column]
Q the [value|number] {value} belongs to [what|which] [bar|label|item]
Q which of the bars [is|has|shows|equals] {value}
Q what has [the value|a value of] {value}
Q what is [equal to|at] {value}<in>
Q whose [number|bar] [is|shows] {value}
Q [what|which] [bar|label] [has|is drawn with] a height of {value}
Q is there a bar with {value}, and which
I name the [bar|column|label] [whose value is|that is|that shows] {value}
I [find|locate|identify|look up|point out|show me|give me] the [bar|column|label|item] [with|of|that has] [the value |the number |value |]{value}
I tell me [what|which] [bar|label|one|item] [is|has|shows] {value}
I look for {value} and name [its label|the bar|its bar]
E [what|which] [bar|label|item|one] [is|shows|has|stands at] {value}
E whose value is {value}
E where [the number|the value|] {value} is
N the [bar|label|item|column] [that has|that shows|whose value is] {value}
N the label of the bar [with|of] [value |the value |]{value}
F [bar|label|item] with [value |the value |]{value}
F [bar|label] of value {value}
F {value}: [what|which] [bar|label|one]
F [what|which] [bar|label|one] for {value}
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
Q is the bar [of|for|labeled] {one} [larger|bigger|higher|taller] than [that of|the one of|the bar of|the bar for] {other}
Q does {one} [beat|exceed|surpass|top|outdo] {other}<in>
Q does the bar {one} [stand|go|rise|reach] higher than the bar {other}
Q does {one} [stand|go|rise|reach] [higher|further up] than {other}
Q is {one} [above|ahead of|over] {other}<in>
Q is there more of {one} than of {other}
Q has {one} [got |]a [larger|higher|bigger] [value|number] than {other}
Q do we see a [larger|higher] value for {one} than for {other}
Q compared [to|with] {other}, is {one} [larger|bigger|higher|taller]
Q of {one} and {other}, is {one} the [larger|bigger|higher|taller] [one|bar|]
Q is the [number|value|figure] [of|for|at|above] {one} [larger|bigger|higher|greater] than the [number|value|figure] [of|for|at|above] {other}
Q am I right that {one} is [larger|bigger|higher|taller] than {other}
Q I think {one} is [larger|bigger|higher] than {other}, is that [right|true|correct]
Q can you see [that|if|whether] {one} is [larger|bigger|higher] than {other}
Q did {one} [get|reach|score|have] more than {other}
Q does {one} [lead|win] against {other}
Q in [this|the] {image}, is {one} [larger|bigger|higher|taller] than {other}
Q looking at the {image}, is {one} [larger|bigger|higher] than {other}
I [check|find out|determine|verify] [if|whether] {one} is [larger|bigger|higher|taller] than {other}
I [check|tell me] [if|whether] {one} [has more than|beats|exceeds] {other}
I compare {one} [to|with] {other}: is {one} [larger|bigger|higher]
E [if|whether] the bar {one} is [larger|bigger|higher|taller] than the bar {other}
E [if|whether] {one} has [more|a larger value|a higher value] than {other}
E [if|whether] the value of {one} is [larger|higher|greater] than the value of {other}
F {one} [larger|bigger|higher|taller|more] than {other}
F {one} [larger|bigger|higher] than {other}: yes or no
F yes or no: {one} is [larger|bigger|higher] than {other}
F {one} > {other}
F true or false: {one} is [larger|bigger|higher] than {other}
""",
    "larger_bar_of_two": """
Q! [what|which] is [larger|bigger|higher|taller|more], {one} or {other}
Q [what|which] [bar|one] is [larger|bigger|higher|taller], {one} or {other}
Q is {one} or {other} [larger|bigger|higher|taller]
Q which has the [larger|higher|greater] value, {one} or {other}
Q who has more, {one} or {other}
Q between {one} and {other}, which is [larger|higher|bigger]
E which is [larger|bigger|higher], {one} or {other}
Q of {one} and {other}, [what|which] [one |bar |]is [larger|bigger|higher|taller]
Q [what|which] [one |bar |]is the [larger|bigger|higher|taller] [one|bar]: {one} or {other}
Q which of [them|the two|these two|these bars] is [larger|bigger|higher|taller], {one} or {other}
Q [what|which] [bar |one |]has more, {one} or {other}
Q [what|which] [bar |one |]has the [larger|higher|greater|bigger] [number|value], {one} or {other}
Q [what|which] [bar |]is [ahead|in front|on top], {one} or {other}
Q [what|which] [bar |one |]stands [higher|taller], {one} or {other}
Q does {one} or [does |]{other} have [more|the larger value|the higher value|the greater value]
Q is it {one} or {other} that is [larger|bigger|higher|taller]
Q is the [larger|bigger|higher|taller] [bar|one] {one} or {other}
Q if you compare {one} and {other}, which is [larger|bigger|higher]
Q comparing {one} with {other}, [which|what] is [larger|bigger|higher]
Q who [wins|leads|is ahead], {one} or {other}
Q {one} or {other}: [which|what] is [larger|bigger|higher|taller]
Q {one} or {other}, [which|who] has more
Q where is the value [larger|higher|greater], at {one} or at {other}
I compare {one} and {other}
I compare [the bars|bars|the values of] {one} and {other}
I [tell me|say|name] which is [larger|bigger|higher|taller], {one} or {other}
I name the [larger|bigger|higher|taller] [one|bar] of {one} and {other}
E which [bar|one] is [larger|bigger|higher|taller], {one} or {other}
E who has more, {one} or {other}
E [if|whether] {one} or {other} is [larger|bigger|higher]
N the [larger|bigger|higher|taller] [one|bar] of {one} and {other}
F [larger|bigger|higher|taller|more]: {one} or {other}
F {one} or {other}
F {one} versus {other}
F the [larger|higher] of {one} and {other}
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
