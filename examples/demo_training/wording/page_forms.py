"""Forms of questions about pages."""

from __future__ import annotations

PAGE_FORMS = {
    "read_page": """
Q! what does [the|this] page say
Q what does [this|the] [document|letter|note|sheet|list|scan] say
Q what is [written|printed] on [the|this] [page|sheet|document|note|list]
Q what is [written|printed] [here|there|in it|in the {image}]
Q what [text|writing] is on [the|this] [page|sheet|{image}]
Q what do the lines say
Q what do you read on [the|this] page
Q what [can be read|is there to read]<in>
Q which [lines|words] are on [the|this] page
Q how does the text go
Q what is the [whole|full|entire|complete] text<in>
Q what does it say, line by line
Q what does it say
Q what is the [content|text] of [the|this] [page|document]
I! read [the|this] page
I read [the|this] page [to me|for me|out|out loud|aloud|line by line|in order|from top to bottom]
I read [all|the|all the|all of the] [lines|text|words]<in>
I read [it|this|everything|the text] [line by line|from top to bottom|in order|]
I read the [whole|full|entire|complete] [page|text|document]
I read [the|this] [document|letter|note|sheet|list|scan|text]
I! transcribe [the|this] page
I transcribe [the text|all text|all lines|everything]<in>
I transcribe [the|this] [document|note|sheet|list|text]
I [copy|type out|write down|extract|output|return|give me] [the text|all text|all lines|the whole text|everything written]<in>
I [copy|type out|write down|output|give me] [the|this] page
I [extract|return|output] the text of [the|this] [page|document|sheet]
I do OCR on [this|the] [page|document|{image}]
I turn [this|the] [page|document|scan] into text
I convert [this|the] [page|document] to [text|plain text|Markdown]
I give me the [lines|text|content] of [the|this] page
I digitize [this|the] page
E what [is written on the page|the page says|the lines say|the document says|this page says]
E what it says
N the text of [the|this] [page|document|sheet]
N the [whole|full|complete] text<in>
F! OCR
F page text
F text of the page
F full text, please
F all lines, please
F the page as text
""",
    "count_lines": """
Q how many lines [are there|do you see|are on the page|does the page have|does the text have]
Q how many lines of text [are there|do you see|are on the page]
Q how many [rows|lines] does [it|this page|the document] have
Q what is the number of lines
I count the lines<in>
I count the lines [of text|on the page]
I tell me how many lines there are
E how many lines there are
N the number of lines
F number of lines
F how many lines
""",
    "describe_page": """
Q what [kind of|] {image} is [this|it]
I! describe this {image}
I describe [the|your|that] {image}
Q what is this
F description of the {image}
I say what [this|it] is
Q what [am I looking at|is shown here]
I describe what you see
""",
    "count_pages": """
Q! how many pages are there
Q how many pages [do you see|are these|is this|are shown|can you see|did you get]
Q how many pages does [the|this|my] [document|file|PDF|letter|report] have
Q how many pages [did I send|have I sent|did I give you|did I attach|did I upload]
Q what is the [number|total number] of pages
Q what is the page count
Q how many sheets [are there|do you see|are these]
Q how long is the [document|file], in pages
Q how many [page pictures|pictures of pages] are there
I! count the pages
I count [all|all the|these|my] pages
I count the sheets
I tell me how many pages [there are|you see|it has|the document has]
I [give me|name|state|report] the [number of pages|page count]
E how many pages [there are|these are|it has|the document has|I sent]
N the number of pages
N the page count
F! number of pages
F page count
F how many pages
F pages in total
""",
}
