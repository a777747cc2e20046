"""Forms of questions about written text."""

from __future__ import annotations

WRITTEN_FORMS = {
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
Q does it [really|actually] say {quoted}
Q does [this|that|the sign|the inscription|the lettering] [say|read] {quoted}
Q does the [text|word|writing] read {quoted}
Q does the {image} [show|contain|have] the [word|text|writing] {quoted}
Q is [the word|the text|the writing] {quoted} [shown|written|printed|there|visible]<in>
Q is {quoted} what [it says|is written|you read|the text says]<in>
Q is {quoted} the [word|text] [shown|written|here|you see|]
Q is {quoted} [to be read|shown|printed]<in>
Q [do|can] you [see|read] {quoted}<in>
Q [do|can] you see the [word|text] {quoted}<in>
Q have they written {quoted}<in>
Q did [someone|they|I] write {quoted}
Q am I right that it says {quoted}
Q I read {quoted}, is that [right|correct|true]
Q I think it says {quoted}, is that [right|correct|true]
Q would you say it says {quoted}
Q the [text|word|writing] is {quoted}, [right|correct|isn't it]
I [check|tell me|verify] [if|whether] it says {quoted}
E [if|whether] the [text|word|writing|{image}] says {quoted}
E [if|whether] {quoted} is written<in>
F {quoted}: yes or no
F it says {quoted}, yes or no
F says {quoted}
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
}
