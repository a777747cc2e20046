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
