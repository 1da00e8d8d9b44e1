"""Texts to encode: a mixed one of more than a megabyte, random strings, and the corners."""
import random
import sysconfig
import unicodedata
from pathlib import Path

SENTENCES = [
    "All human beings are born free; they're equal, aren't they? We'll see what he'd say: I'M SURE, YOU'RE NOT.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren – auch in Straßen, Gärten und Übergängen.",
    "Tous les êtres humains naissent libres et égaux en dignité; l'œuvre d'art, qu'est-ce que c'est ?",
    "Todos los seres humanos nacen libres. ¿Dónde está el niño? ¡Mañana llegará la cigüeña!",
    "Все люди рождаются свободными и равными в своём достоинстве и правах. Ёжик съел 12 яблок.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ΣΊΣΥΦΟΣ",
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "すべての人間は、生まれながらにして自由であり、カタカナとひらがなと漢字を混ぜて書く。ｶﾞｷﾞｸﾞ",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 각각의 조합: 한글",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق، وقد وُهبوا عقلًا وضميرًا. ١٢٣٤٥",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם עֲלֵיכֶם",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। ०१२३",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும் சமமானவர்கள்.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ๑๒๓",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İstanbul'da ıslık çaldı.",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "ሰብዓዊ ፍጡራን ሁሉ ነጻና በክብርና በመብት እኩል ናቸው። ១២៣ ៤៥៦",
    "👩‍👩‍👧‍👦 family, 🇩🇪🇫🇷 flags, 👍🏽 thumbs, ❤️‍🔥 heart, 🤷🏿‍♀️ shrug, ☂️ umbrella, 🫠 melting; 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛",
    "E = mc², ∑ᵢ xᵢ ≤ ∫₀^∞ f(t)dt, ½ + ¾ = 1¼, Ⅷ ⅻ ⓐⓑ ㊿ ﬁne ﬂow ①②③ x̂ ŷ ñ n̄ Å Å e\u0301 o\u0308\u0304",
    "if (x<=10 && y!=0) { return arr[i++] ^ ~mask >> 3; } // TODO: 0xDEADBEEF 1e-9 3.14159 1234567890",
    "SELECT * FROM t WHERE a='O''Brien' AND b LIKE '%x_'; https://example.org/a?b=c&d=%20#frag user@mail.org",
    "\tline\r\n  two\u00a0spaces\u3000wide\u2003em\u200bzero\u200d\u180e\u2028sep\x0b\x0c\x85nel   \n\n\n   trailing   ",
]


def mixed_text(seed=7):
    """More than a megabyte: source code, sentences in many scripts whole and shuffled, white space
    in runs, numbers, emoji, and broken UTF-8."""
    rng = random.Random(seed)
    parts = []
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in ("argparse.py", "typing.py", "textwrap.py", "inspect.py", "_pydecimal.py"):
        parts.append((library / name).read_bytes()[:90_000])
    words = [w for s in SENTENCES for w in s.split(" ")]
    size = sum(map(len, parts))
    while size < 1_250_000:
        kind = rng.random()
        if kind < 0.35:
            part = rng.choice(SENTENCES).encode()
        elif kind < 0.8:
            part = (rng.choice([" ", "  ", "\n", " ", "\t"]).join(rng.choices(words, k=rng.randint(3, 40)))).encode()
        elif kind < 0.9:
            part = str(rng.randint(0, 10 ** rng.randint(1, 30))).encode() + rng.choice([b".", b",", b" ", b"%"])
        elif kind < 0.95:
            part = rng.choice([b" ", b"\n", b"\r\n", b"\t", "\u3000".encode()]) * rng.randint(1, 40)
        else:
            raw = bytearray(rng.choice(SENTENCES).encode())
            for _ in range(rng.randint(1, 6)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            part = bytes(raw)
        parts.append(part + rng.choice([b" ", b"\n", b""]))
        size += len(parts[-1])
    return b"".join(parts)


def settled(char):
    """Whether the oracle's (older) Unicode tables agree with Python's about a character: newer ones
    are no test of the tokenizer."""
    from tokenizers.normalizers import NFKD, StripAccents
    category = unicodedata.category(char)
    return (category not in ("Cn", "Co") and NFKD().normalize_str(char) == unicodedata.normalize("NFKD", char)
            and (StripAccents().normalize_str(char) == "") == (category[0] == "M"))


def random_strings(count=1000, seed=11):
    rng = random.Random(seed)
    assigned = [c for c in range(0x30000) if not 0xD800 <= c < 0xE000 and settled(chr(c))]
    spaces = [ord(c) for c in " \t\n\r\u00a0\u3000\u2009'"]
    out = []
    for i in range(count):
        length = rng.randint(0, 60)
        if i % 10 == 9:
            out.append(bytes(rng.randrange(256) for _ in range(length)))
            continue
        pools = [range(32, 127), spaces, assigned, range(0x20, 0x250), range(0x4E00, 0x9FA5),
                 range(0x1F300, 0x1F650), range(0x300, 0x370)]
        use = rng.sample(pools, rng.randint(1, 4))
        out.append("".join(chr(rng.choice(rng.choice(use))) for _ in range(length)).encode("utf-8", "replace"))
    return out


def special_strings(specials, seed=13):
    """Texts with special tokens in them, whole and cut short."""
    rng = random.Random(seed)
    out = []
    for _ in range(60 if specials else 0):
        bits = []
        for _ in range(rng.randint(1, 6)):
            token = rng.choice(specials)
            bits.append(rng.choice([token, token, " " + token + " ", token[:-1], token + token, " \n" + token + "\t x",
                                    rng.choice(SENTENCES)[:20], " ", "word"]))
        out.append("".join(bits).encode())
    return out
