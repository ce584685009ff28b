"""PTX files: registers of two 8-bit numbers that are both packed into a word and shifted apart, which ptxas 12.8 gets wrong."""
import re, sys
for path in sys.argv[1:]:
    ptx = open(path).read()
    narrow = set(re.findall(r"e4m3x2\.f32\s+(%rs\d+)", ptx))
    packed = {r for a in re.findall(r"mov\.b32\s+%r\d+, \{([^}]*)\}", ptx) for r in re.findall(r"%rs\d+", a)}
    apart = set(re.findall(r"shr\.u16\s+%rs\d+, (%rs\d+), 8", ptx)) | set(re.findall(r"cvt\.u32\.u16\s+%r\d+, (%rs\d+)", ptx))
    print(path, len(narrow), "rounded,", len(narrow & packed), "packed,", len(narrow & apart), "taken apart,", len(narrow & packed & apart), "both")
