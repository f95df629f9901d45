/* Pre-tokenizers that files only name, as the models' own tokenizer.json describe them (normal
 * form included, which llama.cpp leaves out). SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/token/tokenizer_impl.h"

enum { max_patterns = 6 };

#define APOSTROPHES "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS_THEN(digits)                               \
    APOSTROPHES "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits \
                "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define NOT_HAN(class) "(?:(?!\\p{Han})[" class "])" /* the class without Han letters */
#define O200K                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" APOSTROPHES "?"  \
    "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" APOSTROPHES "?" \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CJK_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

/* DeepSeek-LLM lists the letters with case, as of Unicode 11, instead of naming the class. */
#define CASED                                                                               \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"          \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"  \
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}"           \
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"                \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"          \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"          \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}" \
    "\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}"  \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"          \
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"           \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"            \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}" \
    "\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"  \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"           \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"          \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"        \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"  \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

typedef enum merging {
    LISTED,      /* by the file's list */
    WHOLE_FIRST, /* the same, but a piece that is a token is that token (ignore_merges) */
    RANKS        /* the same, of a vocabulary made for tiktoken: without a list, by rank */
} merging;

typedef struct pre_tokenizer {
    const char *name;
    kt_normal_form form;
    merging merging;
    const char *patterns[max_patterns]; /* each Isolated, in order */
} pre_tokenizer;

static const pre_tokenizer pre_tokenizers[] = {
    {"gpt-2", KT_NORMAL_NONE, LISTED, {KT_GPT2_PATTERN}},
    {"mpt", KT_NORMAL_NFC, LISTED, {KT_GPT2_PATTERN}},
    {"qwen2", KT_NORMAL_NFC, LISTED, {WORDS_THEN("\\p{N}")}},
    {"qwen35",
     KT_NORMAL_NFC,
     LISTED,
     {APOSTROPHES "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                  "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"deepseek-r1-qwen", KT_NORMAL_NFC, LISTED, {WORDS_THEN("\\p{N}")}},
    {"llama-bpe", KT_NORMAL_NONE, WHOLE_FIRST, {WORDS_THEN("\\p{N}{1,3}")}},
    {"llama3", KT_NORMAL_NONE, WHOLE_FIRST, {WORDS_THEN("\\p{N}{1,3}")}},
    {"glm4", KT_NORMAL_NONE, LISTED, {WORDS_THEN("\\p{N}{1,3}")}},
    {"chatglm-bpe", KT_NORMAL_NONE, LISTED, {WORDS_THEN("\\p{N}{1,3}")}},
    {"deepseek-v3",
     KT_NORMAL_NONE,
     LISTED,
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
      "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+"
      "|\\s+(?!\\S)|\\s+"}},
    {"deepseek-llm",
     KT_NORMAL_NONE,
     LISTED,
     {"[\\r\\n]", "\\s?[" CASED "]+",
      "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
      "\\s+$", CJK_HANGUL, "\\p{N}"}},
    {"deepseek-coder",
     KT_NORMAL_NONE,
     LISTED,
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_HANGUL, "\\p{N}"}},
    {"minimax-m2", KT_NORMAL_NONE, LISTED, {O200K}},
    {"gpt-4o", KT_NORMAL_NONE, LISTED, {O200K}},
    {"kimi-k2",
     KT_NORMAL_NONE,
     RANKS,
     {"\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN(UPPER) "*" NOT_HAN(
         LOWER) "+" APOSTROPHES "?"
                "|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN(UPPER) "+" NOT_HAN(
                    LOWER) "*" APOSTROPHES "?"
                           "|\\p{N}{1,3}| "
                           "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"falcon", KT_NORMAL_NONE, LISTED, {"[\\p{P}$+<=>^~|`]+", KT_GPT2_PATTERN, "[0-9][0-9][0-9]"}},
    {"default",
     KT_NORMAL_NONE,
     LISTED,
     {"[\\p{P}$+<=>^~|]+", KT_GPT2_PATTERN, "\\p{N}+", "[0-9][0-9][0-9]"}}};

kt_status kt_tokenizer_set_pre(kt_tokenizer *t, const char *name, size_t n, kt_err *err) {
    for (size_t i = 0; i < sizeof pre_tokenizers / sizeof *pre_tokenizers; i++) {
        const pre_tokenizer *p = &pre_tokenizers[i];
        if (strlen(p->name) != n || memcmp(p->name, name, n) != 0) continue;
        if (p->form != KT_NORMAL_NONE) t->forms[t->n_forms++] = p->form;
        t->bpe.ignore_merges = p->merging != LISTED;
        t->bpe.by_rank = p->merging == RANKS;
        for (int k = 0; k < max_patterns && p->patterns[k]; k++) {
            KT_TRY(kt_splitter_add(&t->splitter, p->patterns[k], strlen(p->patterns[k]), false,
                                   KT_SPLIT_ISOLATED, false, err));
        }
        return KT_OK;
    }
    return kt_fail(err, KT_E_UNSUPPORTED, "pre-tokenizer '%.*s' (tokenizer.ggml.pre) is not known",
                   n < 100 ? (int)n : 100, name);
}
