/* Recorded outputs of every family and what they mean, as one line of text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_PARSER_CASES_H
#define KT_TESTS_PARSER_CASES_H

#include <stdbool.h>

/* Functions that every case may call. */
#define PARSER_TOOLS                                                                             \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{"            \
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"                        \
    "\"days\":{\"type\":\"integer\"},\"detail\":{\"type\":\"boolean\"},"                         \
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"                             \
    "\"where\":{\"type\":\"object\"},\"note\":{\"type\":[\"string\",\"null\"]},"                 \
    "\"unit\":{\"enum\":[\"C\",\"F\"]},\"id\":{\"anyOf\":[{\"type\":\"string\"},"                \
    "{\"type\":\"integer\"}]}},\"required\":[\"city\"]}}},"                                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"write_file\",\"parameters\":{"              \
    "\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"},"                        \
    "\"content\":{\"type\":\"string\"}}}}},"                                                     \
    "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{}}}}]"

/* expect: T(text) R(reasoning) and for a call C(name)A(arguments) followed by E, or X when the
 * model did not finish it. */
typedef struct parser_case {
    const char *parser, *reasoning;
    bool inside; /* generation starts in reasoning */
    const char *output, *expect;
} parser_case;

#define NS3 "]<]minimax[>["

static const parser_case parser_cases[] = {
    /* ---- reasoning ---- */
    {"none", "none", false, "plain <think>x</think> <tool_call>",
     "T(plain <think>x</think> <tool_call>)"},
    {"hermes", "qwen3", false, "", ""},
    {"hermes", "qwen3", false, "Hello, w\xc3\xb6rld! ", "T(Hello, w\xc3\xb6rld! )"},
    {"hermes", "qwen3", false, "<think>\nHm, 2 < 3.\n</think>\n\nYes.", "R(Hm, 2 < 3.)T(Yes.)"},
    {"hermes", "qwen3", false, "<think>\n\n</think>\n\nYes.", "T(Yes.)"},
    {"hermes", "qwen3", false, "\n<think></think>Yes.\n", "T(Yes.\n)"},
    {"hermes", "qwen3", false, "<think>\nto be continued \n", "R(to be continued \n)"},
    {"hermes", "qwen3", true, "Okay.\n</think>\n\nYes.", "R(Okay.)T(Yes.)"},
    {"hermes", "qwen3", true, "<think>\nOkay.</think>Yes.", "R(Okay.)T(Yes.)"},
    {"hermes", "qwen3", true, "\n  \n</think>\n\n    code", "T(    code)"},
    {"hermes", "qwen3", true, "a </thin b <think> c</thinker></think>d",
     "R(a </thin b <think> c</thinker>)T(d)"},
    {"hermes", "qwen3", true, "cut </thi", "R(cut </thi)"},
    {"hermes", "qwen3", false, "The tag `<think>` opens, </think> closes.",
     "T(The tag `<think>` opens, </think> closes.)"},
    {"hermes", "qwen3", false, "```xml\n<think>\nno</think>\n```\n<think>yes</think>ok",
     "T(```xml\n<think>\nno</think>\n```)R(yes)T(ok)"},
    {"glm45", "glm45", false, "\n<think>A</think>\nB\n<think>C</think>\nD", "R(A)T(B)R(C)T(D)"},
    {"seed_oss", "seed_oss", false, "\n<seed:think>A</seed:think>\nB", "R(A)T(B)"},
    {"minimax_m2", "minimax-append-think", true, "A\n</think>\n\nB",
     "T(<think>\nA\n</think>\n\nB)"},
    /* ---- Hermes: Qwen2.5, Qwen3 ---- */
    {"hermes", "qwen3", false,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xc3\xb6ln\", "
     "\"days\": 3}}\n</tool_call>",
     "C(get_weather)A({\"city\": \"K\xc3\xb6ln\", \"days\": 3})E"},
    {"hermes", "qwen3", false,
     "<think>\nI need it.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"now\", "
     "\"arguments\": {}}\n</tool_call>\n"
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
     "R(I need it.)T(Let me look.)C(now)A({})EC(get_weather)A({\"city\": \"Oslo\"})E"},
    {"hermes", "qwen3", false,
     "<tool_call>{\"arguments\": {\"path\": \"/a\", \"content\": \"</tool_call> {\\\"x\\\"}\"}, "
     "\"name\": \"write_file\"}</tool_call> done",
     "C(write_file)A({\"path\": \"/a\", \"content\": \"</tool_call> {\\\"x\\\"}\"})ET(done)"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\"}\n</tool_call>", "C(now)A({})E"},
    {"hermes", "qwen3", false,
     "<tool_call>\n{\"name\": \"now\", \"arguments\": null}\n</tool_call>", "C(now)A({})E"},
    {"hermes", "qwen3", false,
     "<tool_call>\n{\"id\": 7, \"name\": \"now\", \"x\": [1, {\"y\": 2}], \"arguments\": {\"z\": "
     "1}}\n</tool_call>",
     "C(now)A({\"z\": 1})E"},
    {"hermes", "qwen3", false,
     "<tool_call>\n{\"name\": \"now\", \"arguments\": \"{\\\"z\\\": [1]}\"}\n</tool_call>",
     "C(now)A({\"z\": [1]})E"},
    {"hermes", "qwen3", false,
     "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"z\": [true, False, "
     "None,],}}\n</tool_call>",
     "C(now)A({\"z\": [true, false, null]})E"},
    {"hermes", "qwen3", false,
     "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"z\": \"a\nb\\d\\ud83d\\ude00\\ud83d "
     "\\u12\"}}\n</tool_call>",
     "C(now)A({\"z\": \"a\\nb\\\\d\\ud83d\\ude00\\ufffd \\\\u12\"})E"},
    {"hermes", "qwen3", false,
     "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"z\": 1}}}\n</tool_call>\nok",
     "C(now)A({\"z\": 1})ET(}ok)"},
    /* cut at every kind of place */
    {"hermes", "qwen3", false, "x\n<tool_call>\n{\"name\": \"no",
     "T(x\n<tool_call>\n{\"name\": \"no)"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\"", "C(now)A({})X"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"b\\",
     "C(now)A({\"a\": \"b\"})X"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": [1.",
     "C(now)A({\"a\": [1]})X"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": -",
     "C(now)A({\"a\": null})X"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": tr",
     "C(now)A({\"a\": true})X"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\"",
     "C(now)A({\"a\":null})X"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1e5, ",
     "C(now)A({\"a\": 1e5})X"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": {}}",
     "C(now)A({\"a\": {}})X"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}",
     "C(now)A({})E"},
    /* what is no call */
    {"hermes", "qwen3", false, "Use <tool_call> to call, <tool_call",
     "T(Use <tool_call> to call, <tool_call)"},
    {"hermes", "qwen3", false, "<tool_call>\nget_weather(Oslo)\n</tool_call>",
     "T(<tool_call>\nget_weather(Oslo)\n</tool_call>)"},
    {"hermes", "qwen3", false, "<tool_call>\n{\"name\": 5}\n</tool_call>",
     "T(<tool_call>\n{\"name\": 5}\n</tool_call>)"},
    {"hermes", "qwen3", false, "<tool_call>\n{}\n</tool_call>", "T(<tool_call>\n{}\n</tool_call>)"},
    {"hermes", "qwen3", false, "<tool_call><tool_call>\n{\"name\": \"now\"}\n</tool_call>",
     "T(<tool_call>)C(now)A({})E"},
    {"hermes", "qwen3", false,
     "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\" "
     "1}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}</tool_call>",
     "C(now)A({\"a\" :null})XT(1}})C(now)A({\"a\": 1})E"},
    {"hermes", "qwen3", true, "Call <tool_call>{\"name\": \"now\"}</tool_call>?</think>No.",
     "R(Call <tool_call>{\"name\": \"now\"}</tool_call>?)T(No.)"},
    /* ---- MiniMax-M3 ---- */
    {"minimax_m3", "minimax", false,
     "Hi\n" NS3 "<tool_call>\n" NS3 "<invoke name=\"get_weather\">" NS3 "<city>Oslo <b>" NS3
     "</city>" NS3 "<days>3" NS3 "</days>"
     "" NS3 "<tags>" NS3 "<item>a" NS3 "</item>" NS3 "<item>b" NS3 "</item>" NS3 "</tags>" NS3
     "<where>" NS3 "<lat>1" NS3 "</lat>" NS3 "<in>" NS3 "<x>y" NS3 "</x>" NS3 "</in>"
     "" NS3 "</where>" NS3 "</invoke>\n" NS3 "<invoke name=\"now\">" NS3 "</invoke>\n" NS3
     "</tool_call>",
     "T(Hi)C(get_weather)A({\"city\": \"Oslo <b>\", \"days\": 3, \"tags\": [\"a\", \"b\"], "
     "\"where\": {\"lat\": \"1\", \"in\": {\"x\": \"y\"}}})EC(now)A({})E"},
    {"minimax_m3", "minimax", true,
     "A</think>" NS3 "<tool_call>" NS3 "<invoke name=\"get_weather\">" NS3 "<where>" NS3
     "<lat>\n 1",
     "R(A)C(get_weather)A({\"where\": {\"lat\": \"\\n 1\"}})X"},
    {"minimax_m3", "none", false,
     "" NS3 "<tool_call>" NS3 "<invoke name=\"get_weather\">" NS3 "<tags>[\"a\", 1]" NS3
     "</tags>\n" NS3 "<where> " NS3 "</where>" NS3 "<note>"
     "null" NS3 "</note>" NS3 "<other>" NS3 "<item>1" NS3 "</item>" NS3 "</other>" NS3
     "</invoke>" NS3 "</tool_call>",
     "C(get_weather)A({\"tags\": [\"a\", 1], \"where\": {}, \"note\": null, \"other\": [\"1\"]})E"},
    {"minimax_m3", "none", false,
     "" NS3 "<tool_call>" NS3 "<invoke name=\"get_weather\">" NS3 "<city>A" NS3 "</city>hm " NS3
     "<city>B" NS3 "<c>d" NS3 "</city>" NS3 "<where>" NS3 "<x>1"
     "" NS3 "</x>" NS3 "<x>2" NS3 "</x>" NS3 "</where>" NS3 "</nowhere>" NS3 "</invoke>" NS3
     "</tool_call>ok",
     "C(get_weather)A({\"city\": \"A\", \"where\": {\"x\": \"1\"}})E"
     "T(hm " NS3 "<city>B" NS3 "<c>d" NS3 "</city>" NS3 "<x>2" NS3 "</x>" NS3 "</nowhere>ok)"},
    {"minimax_m3", "none", false,
     "" NS3 "<tool_call>" NS3 "<invoke name=\"get_weather\">" NS3 "<city>A" NS3 "<b>c" NS3
     "</b>" NS3 "</invoke>" NS3 "</tool_call>",
     "C(get_weather)A({\"city\": \"A" NS3 "<b>c" NS3 "</b>\"})X"},
    {"minimax_m3", "none", false,
     "" NS3 "<tool_call>" NS3 "<invoke name=\"get_weather\">" NS3 "<days>1" NS3 "<b>2" NS3
     "</days>" NS3 "</tool_call>ok",
     "C(get_weather)A({\"days\": \"1" NS3 "<b>2\"})ET(ok)"},
    {"minimax_m3", "none", false, "" NS3 "<tool_call>" NS3 "<invoke name=\"now\">x",
     "T(" NS3 "<tool_call>" NS3 "<invoke name=\"now\">x)"},
    {"minimax_m3", "none", false, "" NS3 "<tool_call> is a mark, " NS3 "<x>",
     "T(" NS3 "<tool_call> is a mark, " NS3 "<x>)"},
    {"minimax_m3", "none", false, "" NS3 "<tool_call>" NS3 "<invoke name=\"now\">" NS3 "<a",
     "C(now)A({})X"},
    {"minimax_m3", "none", false,
     "" NS3 "<tool_call>" NS3 "<invoke name=\"get_weather\">" NS3 "<tags>" NS3 "<t>a" NS3 "</t>" NS3
     "</tags>" NS3 "<where>" NS3 "<a>" NS3 "<x>1" NS3 "</x>" NS3 "</a>"
     "" NS3 "<x>2" NS3 "</x>" NS3 "</where>" NS3 "<city>A" NS3 "</town>" NS3 "</city>" NS3
     "</invoke>" NS3 "</tool_call>",
     "C(get_weather)A({\"tags\": [\"a\"], \"where\": {\"a\": {\"x\": \"1\"}, \"x\": \"2\"}, "
     "\"city\": \"A" NS3 "</town>\"})E"},
    /* ---- gpt-oss ---- */
    {"harmony", "harmony", false,
     "<|channel|>analysis<|message|>Hm, 2 < 3.\n<|end|><|start|>assistant<|channel|>final"
     "<|message|>Yes.\n<|return|>",
     "R(Hm, 2 < 3.\n)T(Yes.\n)"},
    {"harmony", "harmony", false,
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant to=functions.get_weather"
     "<|channel|>commentary json<|message|>{\"city\": \"Oslo\", \"days\": 2}<|call|>",
     "R(A)C(get_weather)A({\"city\": \"Oslo\", \"days\": 2})E"},
    {"harmony", "harmony", false,
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"<|call|>\"}<|call|>",
     "R(A)C(get_weather)A({\"city\": \"<|call|>\"})E"},
    {"harmony", "harmony", false,
     "<|channel|>commentary to=functions.now<|constrain|>json<|message|>{}", "C(now)A({})E"},
    {"harmony", "harmony", false, " to=functions.now<|channel|>commentary<|message|><|call|>",
     "C(now)A({})E"},
    {"harmony", "harmony", false,
     " to=functions.now <|channel|>commentary json<|message|>\"{\\\"z\\\": 1}\"<|call|>",
     "C(now)A({\"z\": 1})E"},
    {"harmony", "harmony", false,
     "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant to=functions.now"
     "<|channel|>commentary json<|message|>{\"z\": [1,",
     "T(Let me look.)C(now)A({\"z\": [1]})X"},
    {"harmony", "harmony", false,
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B"
     "<|end|>\n<|start|>assistant<|channel|>commentary<|message|>C<|end|><|start|>assistant"
     "<|channel|>final<|message|>D <|return|>",
     "R(A\n\nB)T(C\n\nD )"},
    {"harmony", "harmony", false,
     "<|channel|>analysis<|message|>no end<|start|>assistant<|channel|>final<|message|>D"
     "<|channel|>analysis<|message|>E",
     "R(no end)T(D)R(\n\nE)"},
    {"harmony", "harmony", false, "<|message|>bare<|end|>after", "T(bareafter)"},
    {"harmony", "harmony", false, "Hello, <world|> to=x", "T(Hello, <world|> to=x)"},
    {"harmony", "harmony", false, " to be continued", "T( to be continued)"},
    {"harmony", "harmony", false, " to=functions.now and", "T( to=functions.now and)"},
    {"harmony", "harmony", false, "<|channel|>fin", ""},
    {"harmony", "harmony", false, " tomorrow <|channel|>final<|message|>x", "T( tomorrow \n\nx)"},
    {"harmony", "harmony", false,
     "<|channel|>commentary<|message|><|end|><|start|>assistant<|channel|>final<|message|>x",
     "T(x)"},
    {"harmony", "harmony", false, "<|channel|>final<|message|>x<|start|>assist", "T(x)"},
    {"harmony", "harmony", false, "<|channel|>final<|message|>x<|en", "T(x<|en)"},
    {"harmony", "harmony", false,
     "<|channel|>final<|message|>a<|end|><|start|>user<|message|>b<|end|>",
     "T(a<|start|>user<|message|>b)"},
    {"harmony", "harmony", false, "<|channel|>final\n<|message|>a",
     "T(<|channel|>final\n<|message|>a)"},
    {"harmony", "harmony", false, "<|channel|>a<|channel|>b<|message|>c",
     "T(<|channel|>a<|channel|>b<|message|>c)"},
    {"harmony", "harmony", false, "<|channel|>final<|end|>x", "T(<|channel|>final<|end|>x)"},
    {"harmony", "harmony", false, "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
     "R(<|channel|>analysis to=python code<|message|>print(1))"},
    {"harmony", "harmony", false,
     "<|channel|>commentary to=functions.now json<|message|>\"no\"<|call|><|start|>assistant"
     "<|channel|>final<|message|>so",
     "T(<|channel|>commentary to=functions.now json<|message|>\"no\"\n\nso)"},
    {"harmony", "harmony", false,
     "<|channel|>commentary to=functions.now json<|message|>{\"a\" 1}<|call|><|start|>assistant"
     "<|channel|>final<|message|>so",
     "C(now)A({\"a\" :null})XT(1}\n\nso)"},
    {"harmony", "none", false,
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B",
     "T(A\n\nB)"},
    {"none", "harmony", false,
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant to=functions.now<|channel|>"
     "commentary json<|message|>{}<|call|>",
     "R(A)T({})"},
    /* ---- Qwen3-Coder ---- */
    {"qwen3_coder", "none", false,
     "I'll check.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nSan "
     "\"Jos\xc3\xa9\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
     "<parameter=detail>\nTrue\n</parameter>\n<parameter=tags>\n['a', \"b'c\", "
     "1.5]\n</parameter>\n<parameter=where>\n{\"lat\": 1}\n</parameter>\n</function>\n</tool_call>",
     "T(I'll check.)C(get_weather)A({\"city\": \"San \\\"Jos\xc3\xa9\\\"\", \"days\": 3, "
     "\"detail\": true, \"tags\": [\"a\", \"b'c\", 1.5], \"where\": {\"lat\": 1}})E"},
    {"qwen3_coder", "none", false,
     "<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</"
     "parameter>\n<parameter=content>\n\nif a < "
     "b:\n\tprint(\"x\\n\")\n\n</parameter>\n</function>\n</tool_call>",
     "C(write_file)A({\"path\": \"a.py\", \"content\": \"\\nif a < "
     "b:\\n\\tprint(\\\"x\\\\n\\\")\\n\"})E"},
    {"qwen3_coder", "none", false, "<function=now>\n</function>\n</tool_call>\n\nAnd?",
     "C(now)A({})ET(And?)"},
    {"qwen3_coder", "none", false,
     "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</"
     "function>\n</tool_call>",
     "C(now)A({})EC(now)A({})E"},
    {"qwen3_coder", "none", false,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n<parameter=days>\n2\n</"
     "function>\n</tool_call>",
     "C(get_weather)A({\"city\": \"Oslo\", \"days\": 2})E"},
    {"qwen3_coder", "none", false,
     "<tool_call>\n<function=get_weather>\n<parameter=note>\nnull\n</"
     "parameter>\n<parameter=days>\nmany\n</parameter>\n<parameter=other>\n5\n</"
     "parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=id>\n12\n</parameter>\n</"
     "function>\n</tool_call>",
     "C(get_weather)A({\"note\": null, \"days\": \"many\", \"other\": \"5\", \"unit\": \"C\", "
     "\"id\": 12})E"},
    {"qwen3_coder", "none", false, "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs",
     "C(get_weather)A({\"city\": \"Os\"})X"},
    {"qwen3_coder", "none", false, "<tool_call>\n<function=get_weather>\n<parameter=ci",
     "C(get_weather)A({})X"},
    {"qwen3_coder", "none", false, "<tool_call>\n<function=get_we",
     "T(<tool_call>\n<function=get_we)"},
    {"qwen3_coder", "none", false,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nA\n</"
     "parameter>\n<parameter=city>\nB\n</parameter>\nhm\n</function>\n</tool_call>ok",
     "C(get_weather)A({\"city\": \"A\"})ET(<parameter=city>\nB\n</parameter>\nhmok)"},
    {"qwen3_coder", "none", false, "<tool_call> is a mark, a<function=b c>",
     "T(<tool_call> is a mark, a<function=b c>)"},
    {"qwen3_coder", "none", false, "<tool_call>\n</tool_call>", "T(<tool_call>\n</tool_call>)"},
    {"seed_oss", "seed_oss", false,
     "<seed:think>A</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</"
     "parameter>\n<parameter=days>2</parameter>\n</function>\n</seed:tool_call>",
     "R(A)C(get_weather)A({\"city\": \"Oslo\", \"days\": 2})E"},
    /* ---- DeepSeek V3, R1 ---- */
    {"deepseekv3", "deepseek-r1", true,
     "Think.\n</"
     "think>\n\nLook:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep"
     "｜>get_"
     "weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜>\n"
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁"
     "end｜><"
     "｜tool▁calls▁end｜>",
     "R(Think.)T(Look:)C(get_weather)A({\"city\": \"Oslo\"})EC(now)A({})E"},
    {"deepseekv3", "none", false,
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"a\": "
     "\"```\"}\n```<｜tool▁call▁end｜>",
     "C(now)A({\"a\": \"```\"})E"},
    {"deepseekv3", "none", false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```jso"
     "n\n\n```<"
     "｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "C(now)A({})E"},
    {"deepseekv3", "none", false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```jso"
     "n\n[1]\n```",
     "T(<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```j"
     "son\n[1]\n```)"},
    {"deepseekv3", "deepseek-r1", true,
     "Hm "
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```jso"
     "n\n{}\n```<"
     "｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "R(Hm)C(now)A({})E"},
    /* ---- DeepSeek V3.1 ---- */
    {"deepseekv31", "deepseek-v3", true,
     "A</think>B<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep"
     "｜>{\"city\": "
     "\"\\u00d6\"}<｜tool▁call▁end｜>"
     "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls"
     "▁end｜>",
     "R(A)T(B)C(get_weather)A({\"city\": \"\\u00d6\"})EC(now)A({})E"},
    {"deepseekv31", "none", false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\": {\"b\": "
     "[",
     "C(now)A({\"a\": {\"b\": []}})X"},
    {"deepseekv31", "none", false,
     "<｜tool▁calls▁begin｜>none"
     " today<｜tool▁calls▁end｜>",
     "T(<｜tool▁calls▁begin｜>none today<｜tool▁calls▁end｜>)"},
    {"deepseekv31", "none", false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁cal"
     "l▁end｜> between "
     "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls"
     "▁end｜>!",
     "C(now)A({})ET( between)C(now)A({})ET(!)"},
    {"deepseekv31", "none", false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>\"{\\\"a\\\": \\"
     "\"\\u00e9\\\"}\""
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>\"\"<｜tool▁call"
     "▁end｜>",
     "C(now)A({\"a\": \"\xc3\xa9\"})EC(now)A({})E"},
    {"deepseekv31", "none", false, "<｜tool▁call▁begin｜>now<｜tool▁sep｜>\"no\"x",
     "T(<｜tool▁call▁begin｜>now<｜tool▁sep｜>\"no\"x)"},
    {"deepseekv31", "none", false,
     "<｜tool▁call▁begin｜>now"
     "<｜tool▁sep｜>\"{\\\"a\\\": [\"y",
     "C(now)A({\"a\": []})XT(y)"},
    /* ---- DeepSeek V3.2, V4 ---- */
    {"deepseekv32", "deepseek-v3", true,
     "A</think>B\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke "
     "name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" "
     "string=\"true\">5</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"days\" string=\"false\">5</｜DSML｜parameter>\n<｜DSML｜para"
     "meter "
     "name=\"x\" string=\"false\">[1, \"a\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
     "<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "R(A)T(B)C(get_weather)A({\"city\": \"5\", \"days\": 5, \"x\": [1, \"a\"]})EC(now)A({})E"},
    {"deepseekv32", "none", false,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"write_file\">\n<｜DSML｜parameter "
     "name=\"content\" string=\"true\">\n<a>\n</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"path\" string=\"false\">not "
     "json</｜DSML｜parameter>\n<｜DSML｜parameter "
     "name=\"u\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "C(write_file)A({\"content\": \"\\n<a>\\n\", \"path\": \"not json\", \"u\": 7})E"},
    {"deepseekv32", "none", false,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜function_calls>ok",
     "T(<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜function_calls>ok"
     ")"},
    {"deepseekv4", "none", false,
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke "
     "name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "C(now)A({})E"},
    /* ---- GLM ---- */
    {"glm45", "glm45", false,
     "\n<think>Hm.</think>\nLook.\n<tool_call>get_weather\n<arg_key>city</"
     "arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</"
     "tool_call>\n"
     "<tool_call>now\n</tool_call>",
     "R(Hm.)T(Look.)C(get_weather)A({\"city\": \"Oslo\", \"days\": 2})EC(now)A({})E"},
    {"glm47", "glm45", true,
     "Hm.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>123</"
     "arg_value><arg_key>x</arg_key><arg_value>{\"a\": "
     "true}</arg_value><arg_key>y</arg_key><arg_value>a "
     "b</arg_value></tool_call><tool_call>now</tool_call>",
     "R(Hm.)C(get_weather)A({\"city\": \"123\", \"x\": {\"a\": true}, \"y\": \"a "
     "b\"})EC(now)A({})E"},
    {"glm47", "glm45", true, "Hm <tool_call>now</tool_call>", "R(Hm)C(now)A({})E"},
    {"glm47", "glm45", true, "The <tool_call> mark</think>ok", "R(The <tool_call> mark)T(ok)"},
    {"glm47", "glm45", false,
     "<tool_call>write_file<arg_key>content</arg_key><arg_value>\nx</arg_value",
     "C(write_file)A({\"content\": \"\\nx</arg_value\"})X"},
    {"glm47", "glm45", false,
     "<tool_call>get_weather<arg_key>city</arg_key>oops<arg_value>A</arg_value></tool_call>",
     "C(get_weather)A({})ET(<arg_key>city</arg_key>oops<arg_value>A</arg_value>)"},
    {"glm47", "glm45", false, "<tool_call></tool_call>", "T(<tool_call></tool_call>)"},
    /* ---- Kimi-K2 ---- */
    {"kimi_k2", "kimi_k2", false,
     "<think>Go</think>I "
     "look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_"
     "argument_begin|>{\"city\": \"Oslo\"}<|tool_call_end|>"
     "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_"
     "calls_section_end|>",
     "R(Go)T(I look.)C(get_weather)A({\"city\": \"Oslo\"})EC(now)A({})E"},
    {"kimi_k2", "kimi_k2", true,
     "Go <|tool_calls_section_begin|><|tool_call_begin|>functions.now:7 "
     "<|tool_call_argument_begin|> {} <|tool_call_end|><|tool_calls_section_end|>",
     "R(Go)C(now)A({})E"},
    {"kimi_k2", "none", false,
     "<|tool_call_begin|>now<|tool_call_argument_begin|>{\"a\":1}<|tool_call_end|>",
     "C(now)A({\"a\":1})E"},
    {"kimi_k2", "none", false,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}<|"
     "tool_call_end|>",
     "C(functions.)A({})E"},
    {"kimi_k2", "none", false,
     "<|tool_calls_section_begin|><|tool_call_begin|>a b<|tool_call_end|>",
     "T(<|tool_calls_section_begin|><|tool_call_begin|>a b<|tool_call_end|>)"},
    /* ---- MiniMax-M2 ---- */
    {"minimax_m2", "minimax-m2", true,
     "Plan\n</think>\n\nNow.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
     "name=\"city\">New \"York\"</parameter>\n<parameter name=\"days\">7</parameter>\n"
     "<parameter name=\"note\">null</parameter>\n<parameter "
     "name=\"detail\">false</parameter>\n</invoke>\n<invoke "
     "name='now'>\n</invoke>\n</minimax:tool_call>",
     "R(Plan)T(Now.)C(get_weather)A({\"city\": \"New \\\"York\\\"\", \"days\": 7, \"note\": null, "
     "\"detail\": false})EC(now)A({})E"},
    {"minimax_m2", "none", false,
     "<minimax:tool_call>\n<invoke name=\"write_file\">\n<parameter "
     "name=\"content\"><p>\\\xf0\x9f\x98\x80</p></parameter>\n</invoke>\n</minimax:tool_call>\n",
     "C(write_file)A({\"content\": \"<p>\\\\\xf0\x9f\x98\x80</p>\"})E"},
    {"minimax_m2", "none", false, "Write <invoke name=\"now\"></invoke> in <minimax:tool_call>.",
     "T(Write <invoke name=\"now\"></invoke> in <minimax:tool_call>.)"},
    /* bytes that are no UTF-8 */
    {"hermes", "qwen3", false, "a\xff\xe2\x82 \xf0\x9f",
     "T(a\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd)"},
    {"hermes", "qwen3", false,
     "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"\xc3\"}}</tool_call>",
     "C(now)A({\"a\": \"\xef\xbf\xbd\"})E"},
};

#endif
