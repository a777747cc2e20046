"""Forms of sums and word problems. `{who}` and `{what}` are a name and a plural noun."""

from __future__ import annotations

TEXT_FORMS = {
    "sum": """
Q what is {a} [+|plus|and] {b}
Q what's {a} [+|plus] {b}
Q how much is {a} [+|plus|and] {b}
Q what [does|do] {a} [+|plus|and] {b} [make|equal|give|come to|add up to]
Q what do you get [when|if] you add {a} [and|to] {b}
Q what do I get [when|if] I add {a} [and|to] {b}
Q what is the [sum|total] of {a} and {b}
Q what is the result of {a} [+|plus] {b}
Q how much [do|does] {a} and {b} make [together|in total|]
Q what [number|value] is {a} [+|plus] {b}
Q what is {b} more than {a}
Q what is {a} increased by {b}
Q what is {a} added to {b}
Q what is the answer to {a} [+|plus] {b}
Q if you add {b} to {a}, what [do you get|is the result]
Q which number is {b} [more|greater|larger] than {a}
Q {a} [+|plus] {b} [is|equals|makes] [what|how much]
Q if I have {a} and get {b} more, how many do I have
Q what is {a} and {b} [together|altogether|in total|in sum]
I add {a} [and|to|plus] {b}
I [calculate|compute|work out|solve|evaluate] {a} [+|plus] {b}
I [find|calculate|compute|give me] the [sum|total] of {a} and {b}
I sum [up |]{a} and {b}
I add up {a} and {b}
I add the numbers {a} and {b}
I tell me what {a} [+|plus|and] {b} [is|makes|equals]
I put {a} and {b} together
E [what|how much] {a} [+|plus|and] {b} [is|makes|equals]
E what the sum of {a} and {b} is
N the [sum|total] of {a} and {b}
N the result of {a} [+|plus] {b}
N {a} [+|plus] {b}
F {a} [+|plus|and] {b}
F {a}+{b}
F {a} + {b} =
F {a}+{b}=
F {a} + {b} = ?
F {a} plus {b} equals
F sum of {a} and {b}
F [add|sum]: {a}, {b}
F! [sum|total|add]: {a}, {b}
F [total|add|plus|addition]: {a} and {b}
F [sum|total|add|addition]: {a} + {b}
F [the sum|the total|total|sum|add up]: {a}, {b}
F {a}, {b}: [sum|total|the sum|add them|add]
F {a} and {b}: [sum|total|the sum|add them|add]
F {a}, {b}, [sum|total]
F [add|add up|sum up] {a}, {b}
F the numbers {a} and {b}: [sum|total|what do they make]
F [the|] [sum|total] of {a}, {b}
F {a} added to {b}
F {a} plus {b}
F {a} + {b} = what
F {a} + {b} makes
Q what is the [sum|total] of the numbers {a} and {b}
Q what is the [sum|total] if you [add|put together] {a} and {b}
Q what [sum|total] do {a} and {b} [give|make]
Q [what|how much] [do|would] I have if I [put|add] {a} and {b} [together|up]
Q adding {a} [and|to] {b} [gives|makes] what
Q {a} and {b} [make|give|is|are] [what|how much|how many]
Q can you add {a} and {b}
Q here are two numbers, {a} and {b}. what is their sum
Q take {a} and add {b}, what [is it|do you get]
I take {a} and add {b}
I [do|make|form] the [addition|sum] {a} + {b}
I add these: {a}, {b}
I add these numbers: {a}[,| and] {b}
I add these two numbers: {a}, {b}
I [give me|tell me] the [sum|total]: {a}, {b}
E [what|how much] you get [if|when] you add {a} and {b}
E how much {a} and {b} are [together|in total]
N the [sum|total] of the numbers {a} and {b}
""",
    "again_sum": """
F and {a} [+|plus|and] {b}
F what about {a} [+|plus|and] {b}
F how about {a} [+|plus|and] {b}
F now {a} [+|plus] {b}
F next: {a} + {b}
F and {a}+{b}
F ok, and {a} plus {b}
F then {a} + {b}
""",
    "story_sum": """
Q! {who} has {a} {what} and [gets|buys|finds|receives|is given|wins] {b} more. how many {what} does {who} have [now|then|in total|altogether]
Q {who} has {a} {what} and {who2} has {b}. how many {what} do they have [together|in total|altogether|in all]
Q {who} has {a} {what}. {who2} has {b} {what}. how many [are there|do they have] [altogether|in total|together]
Q {who} [bought|found|picked|collected|saw] {a} {what} [yesterday|in the morning|on Monday] and {b} [today|in the evening|on Tuesday]. how many {what} is that [in total|altogether|]
Q there are {a} {what} [in the box|in the bag|on the table|in the room] and {b} [in the other one|on the floor|outside|next door]. how many {what} are there [in total|altogether|]
Q there are {a} {what}. {b} more [come|arrive|are added|join them]. how many {what} are there now
Q {who} [ate|lost|sold|used] {a} {what} [and then|and later] {b} more. how many {what} [is that|was that] [in total|altogether|]
Q I have {a} {what} and [you|my friend|my brother|my sister] [gives me|give me|brings me] {b} more. how many {what} do I have
Q I had {a} {what} and [got|bought|found|received] {b} more. how many {what} do I have now
Q we have {a} {what}, and then {b} more [come|arrive]. how many {what} do we have
Q if {who} has {a} {what} and {who2} gives {who} {b} more, how many {what} [does {who} have|are there]
Q if there are {a} {what} and [I add|you add|someone brings] {b} more, how many {what} are there
Q suppose you have {a} {what} and you [get|buy|find] {b} more, how many [do you have|is that]
Q {a} {what} and {b} [more |]{what} make how many {what}
Q how many {what} are {a} {what} and {b} {what}
Q how many {what} [does {who} have|are there] if {who} starts with {a} {what} and gets {b} more
Q on the left there are {a} {what}, on the right there are {b}. how many {what} in total
Q a [box|bag|basket|shelf] holds {a} {what}, another holds {b}. how many {what} do both hold
Q {who} reads {a} pages on Monday and {b} pages on Tuesday. how many pages is that in total
Q {who} is {a} years old. how old will {who} be in {b} years
Q a [book|pen|toy|ticket] costs {a} [dollars|euros|coins] and a [cup|ball|lamp|cake] costs {b}. how much [do they cost together|do both cost|is it in total]
Q {who} walks {a} [miles|steps|blocks] and then {b} more. how far is that in total
Q on a bus there are {a} people, then {b} more get on. how many people are on the bus
Q {who} scored {a} points and then {b} points. how many points is that
Q my [basket|garden|shop] has {a} red {what} and {b} green {what}. how many {what} are there in all
Q {who} put {a} {what} [into|in] a [jar|box|bag], then put in {b} more. how many {what} are in it
F {who} has {a} {what} and gets {b} more. [tell me|say] how many {who} has now
F there are {a} {what} here and {b} {what} there. add them
F {a} {what} plus {b} {what}
F {a} {what} and {b} more {what}
""",
    "only_add": """
Q what is {a} [-|minus|times|*|x|/|divided by] {b}
Q how much is {a} [-|minus|times|*|divided by] {b}
Q what is {a} + {b} + {c}
Q what is {a} plus {b} plus {c}
Q what is the [product|difference] of {a} and {b}
Q what is the square root of {a}
Q what do you get if you [subtract|take] {b} from {a}
Q what is {h} + {b}
Q how much is {b} plus {h}
Q {who} has {a} {what} and [loses|eats|gives away|sells] {b}. how many [are left|does {who} have left|remain]
Q there are {a} {what}, {b} [go away|leave|are taken]. how many are left
Q what is {a} percent of {h}
Q what is half of {a}
I [subtract|take] {b} from {a}
I multiply {a} [by|and|with] {b}
I divide {a} by {b}
I [calculate|compute|solve] {a} [-|minus|*|times|/|x] {b}
I [calculate|compute] {h} + {a}
I add {a}, {b} and {c}
F! {a} [-|*|x|/|minus|times] {b}
F {h} + {h2}
F {a} - {b} = ?
F {a}*{b}=
F {a} + {b} + {c}
Q what is {a} [take away|less|reduced by|over|multiplied by|divided by|to the power of|modulo] {b}
Q how much is {a} [multiplied by|take away|less|times] {b}
Q what do you get [if|when] you [multiply|divide] {a} by {b}
Q what is the [difference between|product of|ratio of|quotient of] {a} and {b}
Q how many times does {b} go into {a}
Q what is the [square|cube|logarithm|double] of {a}
Q what is {h} plus {h2}
Q what is [the sum of|] {a}, {b} and {c} [together|in total|]
Q how much are {a}, {b} and {c}
Q what remains [if|when] you take {b} from {a}
I [add|sum] {h} and {h2}
I subtract: {a}, {b}
I [multiply|divide]: {a}, {b}
I take {b} away from {a}
E [what|how much] {a} [minus|times|divided by] {b} is
N the [product|difference] of {a} and {b}
N {a} [minus|times|divided by] {b}
F {a} times {b}
F [product|difference]: {a}, {b}
F {h} + {b} = ?
F sum: {a}, {b}, {c}
""",
}
