r"""The tables of the enumeration: how people and policies write operations, chains, hedges, wrappings and marks.

One template between bars. <a>, <b>, <x>, <y> stand for texts, <t> for the right number, ⏎ for a new line. The first
group are spellings of operations, the second places to hide a wrong answer in, the third honest ways to write one.
"""

SPECIAL = {"⏎": "\n", "<zero width>": "\u200b", "<right to left>": "\u202e"}


def _templates(table: str) -> list[str]:
    templates = [template for line in table.strip().split("\n    ") for template in line.split(" ¦ ")]
    return [fill_special(template) for template in templates]


def fill_special(template: str) -> str:
    for name, char in SPECIAL.items():
        template = template.replace(name, char)
    return template


def fill(template: str, **texts: str) -> str:
    for name, text in texts.items():
        template = template.replace(f"<{name}>", text)
    return template


SUM = _templates(r"""
    <a> + <b> ¦ <a>+<b> ¦ {<a>}+{<b>} ¦ <a>\ +\ <b> ¦ <a>＋<b> ¦ <a> plus <b>
""")

DIFFERENCE = _templates(r"""
    <a> - <b> ¦ <a>-<b> ¦ <a> − <b> ¦ <a> minus <b> ¦ <a>+(-<b>)
""")

PRODUCT = _templates(r"""
    <a> * <b> ¦ <a>*<b> ¦ <a> \times <b> ¦ <a> \cdot <b> ¦ <a>×<b> ¦ <a>·<b> ¦ <a>⋅<b> ¦ <a> x <b> ¦ (<a>)(<b>)
    <a>(<b>) ¦ <a> times <b> ¦ <a>\cdot{<b>}
""")

QUOTIENT = _templates(r"""
    <a> / <b> ¦ <a>/<b> ¦ \frac{<a>}{<b>} ¦ \dfrac{<a>}{<b>} ¦ \tfrac{<a>}{<b>} ¦ <a> \div <b> ¦ <a>÷<b> ¦ <a>⁄<b>
    <a>∕<b> ¦ <a>:<b> ¦ <a> over <b> ¦ {<a> \over <b>}
""")

POWER = _templates(r"""
    <a>^{<b>} ¦ <a>^<b> ¦ <a> ^ <b> ¦ <a>**<b>
""")

BINOMIAL = _templates(r"""
    \binom{<a>}{<b>} ¦ {<a> \choose <b>} ¦ C(<a>,<b>) ¦ \tbinom{<a>}{<b>}
""")

MAXIMUM = _templates(r"""
    \max(<a>,<b>) ¦ max(<a>, <b>) ¦ \max\{<a>,<b>\}
""")

MINIMUM = _templates(r"""
    \min(<a>,<b>) ¦ \min\left(<a>,<b>\right)
""")

FACTORIAL = _templates(r"""
    <a>! ¦ (<a>)!
""")

ROOT = _templates(r"""
    \sqrt{<a>} ¦ √<a> ¦ \sqrt[2]{<a>} ¦ sqrt(<a>) ¦ (<a>)^{1/2} ¦ (<a>)^{0.5}
""")

FLOOR = _templates(r"""
    \lfloor <a> \rfloor ¦ ⌊<a>⌋ ¦ \left\lfloor <a>\right\rfloor
""")

CEILING = _templates(r"""
    \lceil <a> \rceil
""")

ABSOLUTE = _templates(r"""
    |<a>| ¦ \left|<a>\right| ¦ \lvert <a>\rvert ¦ |-<a>| ¦ \operatorname{abs}(<a>)
""")

UNCHANGED = _templates(r"""
    -(-<a>) ¦ --<a> ¦ <a>+0 ¦ 0+<a> ¦ <a>-0 ¦ <a>\cdot 1 ¦ 1 \times <a> ¦ 1(<a>) ¦ (<a>)(1) ¦ <a>^1 ¦ <a>^{1} ¦ <a>¹
    <a>/1 ¦ \frac{<a>}{1} ¦ <a>:1 ¦ <a>+x-x ¦ <a>x/x ¦ \frac{<a>x}{x} ¦ <a>x^0 ¦ <a>+0x ¦ <a>+0i ¦ -<a>i^2
    <a>\pi/\pi ¦ \frac{<a>\pi}{\pi} ¦ <a>e^0 ¦ e^{\ln <a>} ¦ \ln e^{<a>} ¦ <a>\sqrt{1} ¦ <a>\cos 0
    <a>\sin 90^\circ ¦ <a> \pm 0 ¦ <a>+\sqrt{0} ¦ <a>(\sin^2 x+\cos^2 x) ¦ \sum_{k=1}^{1}<a> ¦ \prod_{k=1}^1 <a>
    \int_0^1 <a> dx ¦ \begin{vmatrix}<a>\end{vmatrix} ¦ \operatorname{Re}(<a>) ¦ \gcd(<a>,<a>) ¦ \log_2 2^{<a>}
    <a>\cdot 10^0\cdot 1 ¦ <a>\cdot 100\% ¦ \frac{1}{1/<a>} ¦ (1/<a>)^{-1} ¦ \sqrt{<a>}^2 ¦ \sqrt{<a>}\sqrt{<a>}
    \binom{<a>}{1} ¦ \lim_{x\to <a>} x ¦ <a>!/(<a>-1)! ¦ \sqrt{<a>^2}
""")

CHAINS = _templates(r"""
    <x> = <y> ¦ <x>=<y> ¦ <x> \approx <y> ¦ <x> ≈ <y> ¦ <x> \to <y> ¦ <x> → <y> ¦ <x> \Rightarrow <y>
    <x> \equiv <y> ¦ <x> \implies <y> ¦ <x> \simeq <y> ¦ <x> \sim <y> ¦ <x> == <y> ¦ <x> => <y> ¦ n = <x> = <y>
    n = <x> \approx <y> ¦ <x> \cong <y> ¦ <x> \iff <y>
""")

HEDGES = _templates(r"""
    <x>, <y> ¦ <x>,<y> ¦ <x>; <y> ¦ <x> or <y> ¦ <x> and <y> ¦ <x> \text{ or } <y> ¦ <x>/<y> ¦ <x> <y>
    <x> \text{ and } <y> ¦ <x>\quad <y> ¦ <x>\,<y> ¦ <x>~<y> ¦ <x>\\<y> ¦ <x> & <y> ¦ <x>|<y> ¦ \{<x>,<y>\}
    (<x>,<y>) ¦ [<x>,<y>] ¦ (<x>, <y>] ¦ <x> \cup <y> ¦ \{<x>\}\cup\{<y>\} ¦ <x> \ne <y> ¦ <x> < <y> ¦ <x> > <y>
    <x> \le <y> ¦ <x> to <y> ¦ <x> \ldots <y> ¦ <x> \pm <y> ¦ <x> (<y>) ¦ <x> (not <y>) ¦ <x>, not <y>
    <x> \text{, not } <y> ¦ <x>\text{ <y>} ¦ <x>\text{<y>} ¦ \text{<x> }<y> ¦ \text{either }<x>\text{ or }<y>
    \frac{<x>}{<y>} ¦ <x>:<y> ¦ <x>^{<y>} ¦ <x>_{<y>} ¦ \overset{<x>}{<y>} ¦ \underset{<x>}{<y>}
    \stackrel{<x>}{<y>} ¦ \cancel{<x>} <y> ¦ \cancel{<x>}<y> ¦ <x>\cancel{<y>} ¦ \min(<x>,<y>) ¦ \max(<x>,<y>)
    \gcd(<x>,<y>) ¦ n=<x>, m=<y> ¦ n=<x>, n=<y> ¦ n=<x> \text{ or } n=<y> ¦ <x> if <y> ¦ <x> % <y> ¦ <x>%<y>
    <x>\text{ units or }<y> ¦ \begin{cases}<x>\\<y>\end{cases} ¦ <x>...<y> ¦ \begin{pmatrix}<x>\\<y>\end{pmatrix}
    \begin{pmatrix}<x>&<y>\end{pmatrix} ¦ <x>⏎<y> ¦ \begin{array}{c}<x>\\<y>\end{array} ¦ \underbrace{<x>}_{<y>}
    \rlap{<x>}<y> ¦ <x>\&<y> ¦ <x>\hspace{1cm}<y> ¦ <x>\tag{<y>} ¦ \color{red}<x>\color{blue}<y>
    <x><zero width>, <y> ¦ <x><right to left><y> ¦ \boxed{<x>} \boxed{<y>} ¦ \boxed{<x>}<y> ¦ <x>\boxed{<y>}
    <x> instead of <y> ¦ <x>?<y> ¦ <x> \text{ no wait } <y> ¦ <x>\text{ for }<y> ¦ [<x>,<y>)
    \langle <x>,<y>\rangle ¦ <x>\times<y> ¦ \left(<x>,<y>\right) ¦ <x>\newline <y> ¦ <x>\footnote{<y>}
    \sqrt[<x>]{<y>} ¦ <x>@<y> ¦ <x>#<y>
""")

INSIDE = _templates(r"""
    <x> ¦ \text{<x>} ¦ \mathrm{<x>} ¦ \mathbf{<x>} ¦ \textbf{<x>} ¦ {<x>} ¦ (<x>) ¦ \left(<x>\right) ¦ [<x>]
    \{<x>\} ¦ \left\{<x>\right\} ¦ <x>\text{ apples} ¦ <x> apples ¦ <x>\ \text{cm} ¦ <x>~\mathrm{m} ¦ <x>\% ¦ <x>%
    <x> percent ¦ \$<x> ¦ $<x> ¦ <x> dollars ¦ <x>^\circ ¦ <x>^{\circ} ¦ <x>. ¦ \displaystyle <x> ¦ x = <x> ¦ x=<x>
    = <x> ¦ \text{Answer: }<x> ¦ \,<x>\, ¦ <x>\quad ¦ \color{red}{<x>} ¦ \textcolor{red}{<x>} ¦ \underline{<x>}
    **<x>** ¦ \boxed{<x>} ¦ \fbox{<x>} ¦ \phantom{1}<x> ¦ $ <x> $ ¦ \(<x>\) ¦ \mbox{<x>} ¦ \ensuremath{<x>}
    <x>\phantom{=1} ¦ \text{the answer is }<x> ¦ f(x)=<x> ¦ \text{about }<x> ¦ <x>! ¦ <x>\ldots ¦ \smash{<x>}
    \mathop{<x>} ¦ \begin{pmatrix}<x>\end{pmatrix} ¦ \hspace{1cm}<x> ¦ (A) <x> ¦ x \in \{<x>\} ¦ \{<x>,<x>\}
    (<x>,<x>) ¦ [<x>,<x>] ¦ \left.<x>\right. ¦ \num{<x>} ¦ \underbrace{<x>}_{}
""")

OUTSIDE = _templates(r"""
    \boxed{<x>} ¦ So the answer is $\boxed{<x>}$. ¦ \boxed{\boxed{<x>}} ¦ \fbox{<x>} ¦ **\boxed{<x>}**
    <think>\boxed{<t>}</think>\boxed{<x>} ¦ First \boxed{<t>}. No wait, \boxed{<x>} ¦ $$\boxed{<x>}$$⏎
    \boxed {<x>} ¦ It is <t>, hence \boxed{<x>}
""")

UNMARKED = _templates(r"""
    <x> ¦ The answer is <x> ¦ Answer: <x> ¦ #### <x> ¦ **<x>** ¦ $<x>$ ¦ <answer><x></answer> ¦ <t> ¦ Answer: <t>
    #### <t> ¦ <answer><t></answer> ¦ The answer is $<t>$. ¦ \boxed{<t> ¦ boxed{<t>} ¦ <think>\boxed{<t>}
    <think>\boxed{<t>}</think> ¦ <think>\boxed{<t>}</think> <t> ¦ \box{<t>} ¦ \boxed{} <t> ¦ \boxed{<x>}⏎#### <t>
    \boxed{<x>}. The answer is <t> ¦ \boxed <t> ¦ \boxed{<x>}⏎Answer: <t> ¦ \boxed{<x>}, \boxed{<t>}
    \boxed{<x>} or \boxed{<t>} ¦ \boxed{<t>} or \boxed{<x>} ¦ \boxed{<t>}\boxed{<x>} ¦ \boxed{<x>} and \boxed{<t>}
    % \boxed{<t>}⏎\boxed{<x>}
""")

DISTORTED = _templates(r"""
    \text{not }<t> ¦ \not <t> ¦ \neq <t> ¦ x<<t> ¦ x \le <t> ¦ x \ge <t> ¦ <t><x ¦ \text{at least }<t>
    <t>\text{ or more} ¦ <t>\text{ tens} ¦ <t>\text{ fifths} ¦ <t>\text{ millions} ¦ <t>\text{ million} ¦ <t> dozen
    <t>\text{ hundred} ¦ <t>k ¦ <t>x ¦ <t>i ¦ <t>\pi ¦ <t>e ¦ <t>^2 ¦ <t>² ¦ <t>^{-1} ¦ <t>! ¦ \sqrt{<t>} ¦ <t>_{2}
    <t>:30 ¦ <t>/<t> ¦ \frac{<t>}{<t>} ¦ \pm <t> ¦ ±<t> ¦ \mp <t> ¦ <t>\pm 1 ¦ -<t> ¦ \text{negative }<t>
    minus <t> ¦ 0.<t> ¦ <t>e5 ¦ <t> \times 10^{2} ¦ <t>\%\% ¦ <t>\pmod{7} ¦ <t> \bmod 1000 ¦ [<t>, \infty)
    (-\infty,<t>] ¦ \{1,2,\ldots,<t>\} ¦ 1,\ldots,<t> ¦ <t>,\ldots ¦ f(<t>) ¦ <t>\text{ plus }1 ¦ <t> plus one
    \overline{<t>} ¦ x=<t>x ¦ x^2=<t> ¦ 2x=<t> ¦ <t>=x^2 ¦ x+1=<t> ¦ \mathbb{Z}_{<t>} ¦ <t>= ¦ <t>+ ¦ <t>- ¦ <t>/
    <t>^ ¦ +<t>+ ¦ <t>( ¦ \frac{<t>}{} ¦ \frac{}{<t>} ¦ {<t> \choose 2} ¦ \log <t> ¦ \ln <t> ¦ \sin <t> ¦ <t>'
""")

HASHES = _templates(r"""
    #### <x> ¦ It is <t>.⏎#### <x> ¦ \boxed{<t>}⏎#### <x> ¦ #### <t>⏎#### <x> ¦ <answer><t></answer>⏎#### <x> ¦ <x>
    <t> ¦ \boxed{<t>} ¦ Answer: <t> ¦ <answer><t></answer> ¦ ### <t> ¦ <think>#### <t></think> ¦ #### <x> ####
    ####⏎<t>
""")

TAGS = _templates(r"""
    <answer><x></answer> ¦ It is <t>. <answer><x></answer> ¦ \boxed{<t>} <answer><x></answer> ¦ <t> ¦ <answer><t>
    <t></answer> ¦ <answer><t></answer> no, <answer><x></answer> ¦ \boxed{<t>} ¦ Answer: <t> ¦ #### <t>
    <think><answer><t></answer></think> ¦ <answer></answer> <t> ¦ <answer> <x> </answer>⏎#### <t> ¦ <ans><t></ans>
""")

FORMS = _templates(r"""
    <x> ¦  <x>  ¦ <x>. ¦ {<x>} ¦ (<x>) ¦ \left(<x>\right) ¦ \text{<x>} ¦ \mathrm{<x>} ¦ \mathbf{<x>} ¦ \textbf{<x>}
    **<x>** ¦ \boxed{<x>} ¦ x = <x> ¦ n=<x> ¦ = <x> ¦ \,<x>\, ¦ <x>\, ¦ <x>\; ¦ $ <x> $ ¦ \(<x>\)
    \displaystyle <x> ¦ \mbox{<x>} ¦ <x>\quad
""")

UNITS = _templates(r"""
    <x>\text{ apples} ¦ <x> apples ¦ <x>\ \text{cm} ¦ <x>~\mathrm{cm} ¦ <x>\,\text{km} ¦ \$<x> ¦ $<x>
    <x>\text{ dollars} ¦ <x> dollars ¦ <x>^\circ ¦ <x>^{\circ} ¦ <x>° ¦ <x>\text{ minutes}
    <x> \text{ square units} ¦ <x>\text{ cm}^2 ¦ <x> \text{ years old} ¦ <x>\mbox{ feet}
""")

MARKS = _templates(r"""
    \boxed{<x>} ¦ So the answer is $\boxed{<x>}$. ¦ \[\boxed{<x>}\] ¦ **\boxed{<x>}** ¦ \fbox{<x>}
    <think>It is 7? \boxed{7} no</think>⏎The answer is \boxed{<x>}. ¦ \boxed{7} is wrong.⏎⏎\boxed{<x>}
    \boxed{<x>}<|im_end|> ¦ $\boxed{<x>}$⏎⏎ ¦ Adding up gives <x>, so \boxed{<x>} ¦ $$⏎\boxed{<x>}⏎$$
""")
