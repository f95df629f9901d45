/* JSON Schema: which texts obey, what is refused by name, and texts drawn from masks, which a
 * validator written apart has to find valid. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/serve/grammar/grammar.h"
#include "tests/support/grammar_check.h"

static kt_grammar *make(const kt_vocabulary *v, const char *schema, kt_status *st, kt_err *err) {
    kt_json_doc *doc = NULL;
    kt_grammar *g = NULL;

    cr_assert_eq(kt_json_parse(schema, strlen(schema), NULL, &doc, err), KT_OK, "%s: %s", schema,
                 err->message);
    *st = kt_grammar_from_schema(v, kt_json_root(doc), &g, err);
    kt_json_destroy(doc);
    return g;
}

typedef struct schema_case {
    const char *schema;
    const char *in[9], *out[14];
} schema_case;

#define OBJECT(members) "{\"type\":\"object\",\"properties\":{" members "}"

static const schema_case cases[] = {
    {"{\"type\":\"null\"}", {"null"}, {"", "nul", "0", "nulll"}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"True", "1"}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"aé🙂\"", "\"\\n\\\"\\u00e9\\ud83d\\ude00\""},
     {"a", "\"", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83dx\"", "\"\xc3\""}},
    {"{\"type\":\"integer\"}",
     {"0", "-1", "123456789012345678"},
     {"00", "-", "1.0", "1e3", "+1", "01", "1234567890123456789"}},
    {"{\"type\":\"number\"}",
     {"0", "-1.5", "1e10", "2.5E-3", "-0.0"},
     {"1.", ".5", "1e", "01", "0x1", "NaN", "1e100"}},
    {"{\"type\":[\"integer\",\"null\"]}", {"5", "null"}, {"\"5\"", "1.5"}},
    {"{\"type\":\"string\",\"nullable\":true}", {"\"\"", "null"}, {"0"}},
    {"{}", {"1", "\"a\"", "{}", "[1, {\"a\":[]}]", "null", "{\n  \"a\": 1\n}"}, {"", "{", "[1,]"}},
    {"true", {"1", "[]"}, {""}},
    {"{\"const\":\"a\\\"b\"}", {"\"a\\\"b\""}, {"\"a\"", "a"}},
    {"{\"enum\":[\"red\",2,null,true,[1,\"x\"],{\"a\":1.50}]}",
     {"\"red\"", "2", "null", "true", "[1,\"x\"]", "{\"a\":1.50}"},
     {"\"blue\"", "3", "red"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1,\"b\"]}", {"\"a\"", "\"b\""}, {"1"}},
    /* Lengths count characters, not bytes and not escapes. */
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"é🙂x\"", "\"\\u00e9\\ud83d\\ude00\""},
     {"\"a\"", "\"abcd\"", "\"🙂\"", "\"\\ud83d\\ude00\""}},
    {"{\"type\":\"string\",\"maxLength\":0}", {"\"\""}, {"\"a\""}},
    {"{\"minLength\":1000}", {NULL}, {"\"a\"", "5"}},
    /* Patterns. */
    {"{\"type\":\"string\",\"pattern\":\"^[a-z]{2}\\\\d+$\"}",
     {"\"ab1\"", "\"zz123\""},
     {"\"ab\"", "\"abc1\"", "\"ab1 \"", "\"AB1\""}},
    {"{\"pattern\":\"b+c\"}", {"\"bc\"", "\"abbbcd\""}, {"\"b\"", "\"c\"", "\"cb\""}},
    {"{\"pattern\":\"^(a|b)*$|^x\"}", {"\"\"", "\"abba\"", "\"xyz\""}, {"\"c\"", "\"abx\""}},
    {"{\"pattern\":\"^\\\\w\\\\s\\\\D\\\\.\\\\u00e9\\\\x41[^\\\"a-c]?$\"}",
     {"\"a x.éA\"", "\"_\\tx.éAd\"", "\"a x.éA\\\\\""},
     {"\"- x.éA\"", "\"a 1.éA\"", "\"a x.éAa\"", "\"a x.éA\\\"\""}},
    {"{\"pattern\":\"^\\\"\\\\n$\"}", {"\"\\\"\\n\""}, {"\"\"\n\"", "\"n\""}},
    {"{\"pattern\":\"^.{2}(?:ab)?\?(?<n>c)$\"}",
     {"\"éxc\"", "\"xxabc\""},
     {"\"xc\"", "\"\\n\\nc\""}},
    /* Formats. */
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\"", "\"2023-04-30\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\"",
      "\"2024-00-10\"", "\"2024-1-1\""}},
    {"{\"type\":\"string\",\"format\":\"time\"}",
     {"\"00:00:00Z\"", "\"23:59:59.123+02:00\""},
     {"\"24:00:00Z\"", "\"12:00Z\"", "\"12:60:00Z\"", "\"12:00:00\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-01-31T10:00:00Z\""},
     {"\"2024-01-31\"", "\"2024-01-31 10:00:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-A456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\"", "\"g23e4567-e89b-12d3-a456-426614174000\""}},
    {"{\"format\":\"ipv4\"}", {"\"127.0.0.1\"", "\"255.249.9.0\""}, {"\"256.0.0.1\"", "\"1.2.3\""}},
    {"{\"format\":\"ipv6\"}",
     {"\"::1\"", "\"::\"", "\"2001:db8::8:800:200c:417a\"", "\"1:2:3:4:5:6:7:8\""},
     {"\"1:2\"", "\":::\"", "\"1::2::3\"", "\"12345::\""}},
    {"{\"format\":\"email\"}", {"\"a.b+c@example.org\""}, {"\"a@b\"", "\"@b.c\"", "\"a b@c.d\""}},
    {"{\"format\":\"duration\"}",
     {"\"P1Y2M3DT4H\"", "\"PT5S\"", "\"P2W\""},
     {"\"P\"", "\"PT\"", "\"1D\""}},
    /* Bounds of numbers. */
    {"{\"type\":\"integer\",\"minimum\":0}", {"0", "7", "123456"}, {"-1", "-0"}},
    {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12}",
     {"-3", "-1", "0", "9", "10", "12"},
     {"-4", "13", "20", "100", "-10"}},
    {"{\"type\":\"integer\",\"minimum\":123,\"maximum\":4567}",
     {"123", "200", "999", "1000", "4567", "4499"},
     {"122", "99", "4568", "5000", "12345"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":11}",
     {"10"},
     {"9", "11", "1"}},
    {"{\"type\":\"integer\",\"maximum\":-5}", {"-5", "-6", "-100"}, {"-4", "0", "5"}},
    {"{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.5}", {"2", "3"}, {"1", "4"}},
    {"{\"type\":\"integer\",\"minimum\":1e2,\"maximum\":1.2E+2}", {"100", "120"}, {"99", "121"}},
    {"{\"type\":\"integer\",\"format\":\"int32\"}",
     {"2147483647", "-2147483648", "0"},
     {"2147483648", "-2147483649"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "0.999", "1.0", "0.0"},
     {"1.1", "1.01", "-0.5", "2"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
     {"0.5", "0.001", "0.90"},
     {"0", "0.0", "1", "1.0"}},
    {"{\"type\":\"number\",\"minimum\":-1.25,\"maximum\":10.5}",
     {"-1.25", "-1.2", "-0.1", "10.5", "10.49", "10", "9.99", "-1.250"},
     {"-1.26", "-1.251", "10.51", "10.6", "11", "-2"}},
    {"{\"type\":\"number\",\"minimum\":0.05}",
     {"0.05", "0.1", "3", "0.051"},
     {"0.04", "0", "0.049"}},
    /* Arrays. */
    {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}}",
     {"[]", "[true]", "[true, false]", "[ ]"},
     {"[1]", "[true,]", "[,true]", "true"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}",
     {"[null,null]", "[null,null,null]"},
     {"[]", "[null]", "[null,null,null,null]"}},
    {"{\"items\":{\"type\":\"null\"},\"maxItems\":0}", {"[]"}, {"[null]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}",
     {"[]", "[1]", "[1,\"a\"]"},
     {"[\"a\"]", "[1,2]", "[1,\"a\",1]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"string\"},\"minItems\":2}",
     {"[1,\"a\"]", "[1,\"a\",\"b\"]"},
     {"[1]", "[1,2]", "[]"}},
    {"{\"items\":[{\"type\":\"integer\"}]}", {"[]", "[4]"}, {"[4,4]", "[null]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"},false]}", {"[]", "[4]"}, {"[4,4]"}},
    /* Objects. */
    {"{\"type\":\"object\"}",
     {"{}", "{\"a\":1}", "{\"a\": 1, \"b\": []}"},
     {"[]", "{a:1}", "{\"a\"}"}},
    {OBJECT(
         "\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}") ",\"required\":[\"a\",\"b\"]}",
     {"{\"a\":1,\"b\":null}", "{ \"a\": 1, \"b\": null }", "{\n  \"a\": 1,\n  \"b\": null\n}"},
     {"{}", "{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"a\":1,\"b\":null,\"c\":1}"}},
    {OBJECT("\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}") "}",
     {"{}", "{\"a\":null}", "{\"b\":null}", "{\"c\":null}", "{\"a\":null,\"c\":null}",
      "{\"a\":null,\"b\":null,\"c\":null}"},
     {"{\"b\":null,\"a\":null}", "{,\"a\":null}", "{\"a\":null,}", "{\"d\":null}"}},
    {OBJECT(
         "\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}") ",\"requi"
                                                                                          "red\":["
                                                                                          "\"b\"]}",
     {"{\"b\":null}", "{\"a\":null,\"b\":null}", "{\"b\":null,\"c\":null}"},
     {"{}", "{\"a\":null}", "{\"c\":null}", "{\"a\":null,\"c\":null}"}},
    {OBJECT("\"a\":{\"type\":\"null\"}") ",\"required\":[\"z\"]}",
     {"{\"z\":[]}", "{\"a\":null,\"z\":1}"},
     {"{}", "{\"a\":null}"}},
    {OBJECT("\"a\":{\"type\":\"null\"},\"ab\":{\"type\":\"null\"}") ",\"additionalProperties\":{"
                                                                    "\"type\":\"integer\"}}",
     {"{}", "{\"a\":null}", "{\"x\":1}", "{\"a\":null,\"x\":1,\"abc\":2}", "{\"\":1,\"é\":2}"},
     {"{\"a\":1}", "{\"x\":null}", "{\"x\":1,\"a\":null}", "{\"ab\":1}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"x\":1,\"y\":2}"},
     {"{\"x\":null}"}},
    {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}", "{ }"}, {"{\"x\":1}"}},
    {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {OBJECT("\"q\\\"\\n\":{\"type\":\"null\"},\"no\":false") "}",
     {"{\"q\\\"\\n\":null}", "{}"},
     {"{\"no\":1}"}},
    /* Combinations. */
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}",
     {"1", "\"a\""},
     {"\"ab\"", "null"}},
    {"{\"type\":\"integer\",\"anyOf\":[{\"minimum\":5},{\"maximum\":2}]}",
     {"5", "2", "-7"},
     {"3", "4"}},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", {"1", "\"a\""}, {"null"}},
    {"{\"oneOf\":[{\"properties\":{\"t\":{\"const\":\"a\"},\"x\":{\"type\":\"null\"}},\"required\":"
     "[\"t\"]},"
     "{\"properties\":{\"t\":{\"const\":\"b\"},\"y\":{\"type\":\"null\"}},\"required\":[\"t\"]}]}",
     {"{\"t\":\"a\",\"x\":null}", "{\"t\":\"b\",\"y\":null}"},
     {"{\"t\":\"a\",\"y\":null}", "{\"t\":\"c\"}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
     "{\"properties\":{\"b\":{\"type\":\"null\"}}}]}",
     {"{\"a\":1}", "{\"a\":1,\"b\":null}"},
     {"{}", "{\"b\":null}"}},
    {"{\"allOf\":[{\"minimum\":3},{\"type\":\"integer\",\"maximum\":9},{\"minimum\":5}]}",
     {"5", "9"},
     {"4", "10", "6.5"}},
    {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}],\"type\":\"integer\"}",
     {"2", "3"},
     {"1", "4"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":2}}},{\"properties\":{\"a\":{\"type\":"
     "\"integer\"}}}]}",
     {"{\"a\":2}", "{}"},
     {"{\"a\":1}", "{\"a\":2.5}"}},
    {"{\"allOf\":[{\"anyOf\":[{\"minimum\":0},{\"maximum\":-10}]},{\"anyOf\":[{\"minimum\":5},"
     "{\"maximum\":-20}]}],\"type\":\"integer\"}",
     {"5", "-20"},
     {"3", "-15"}},
    /* References. */
    {"{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"integer\"}}}", {"1"}, {"null"}},
    {"{\"$ref\":\"#/definitions/x%20y/0\",\"definitions\":{\"x y\":[{\"type\":\"null\"}]}}",
     {"null"},
     {"1"}},
    {"{\"$ref\":\"#/$defs/"
     "p\",\"maximum\":5,\"$defs\":{\"p\":{\"type\":\"integer\",\"minimum\":1}}}",
     {"1", "5"},
     {"0", "6"}},
    {OBJECT("\"v\":{\"type\":\"integer\"},\"next\":{\"$ref\":\"#\"}") ",\"required\":[\"v\"]}",
     {"{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3}}}"},
     {"{\"v\":1,\"next\":{}}", "{}"}},
    {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\","
     "\"items\":{\"$ref\":\"#/$defs/t\"}}]}}}",
     {"null", "[null,[[],null]]"},
     {"[1]", ""}},
};

Test(grammar_schema, texts_are_accepted_and_refused) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const schema_case *c = &cases[i];
        kt_err err = {KT_OK, ""};
        kt_status st;
        kt_grammar *g = make(NULL, c->schema, &st, &err);
        cr_assert_eq(st, KT_OK, "%s: %s", c->schema, err.message);
        for (int k = 0; k < 9 && c->in[k]; k++)
            cr_expect(kt_grammar_takes(g, c->in[k], strlen(c->in[k])), "%s: refuses %s", c->schema,
                      c->in[k]);
        for (int k = 0; k < 14 && c->out[k]; k++)
            cr_expect(!kt_grammar_takes(g, c->out[k], strlen(c->out[k])), "%s: accepts %s",
                      c->schema, c->out[k]);
        kt_grammar_destroy(g);
    }
}

typedef struct refusal {
    const char *schema, *words;
    kt_status status;
} refusal;

static const refusal refusals[] = {
    {"5", "a schema is a number", KT_E_INVALID},
    {"{\"type\":\"text\"}", "schema: #: 'type'", KT_E_INVALID},
    {"{\"type\":[]}", "'type'", KT_E_INVALID},
    {"{\"not\":{}}", "keyword 'not' is not supported", KT_E_UNSUPPORTED},
    {"{\"if\":{}}", "keyword 'if'", KT_E_UNSUPPORTED},
    {"{\"type\":\"integer\",\"multipleOf\":3}", "keyword 'multipleOf'", KT_E_UNSUPPORTED},
    {"{\"type\":\"string\",\"maxLenght\":3}", "keyword 'maxLenght'", KT_E_UNSUPPORTED},
    {"{\"type\":\"array\",\"uniqueItems\":true}", "keyword 'uniqueItems'", KT_E_UNSUPPORTED},
    {"{\"properties\":{\"a\":{\"items\":{\"contains\":1}}}}",
     "schema: #/properties/a: keyword 'contains'", KT_E_UNSUPPORTED},
    {"{\"type\":\"string\",\"format\":\"iri\"}", "format 'iri'", KT_E_UNSUPPORTED},
    {"{\"type\":\"integer\",\"format\":\"date\"}", "format 'date'", KT_E_UNSUPPORTED},
    {"{\"pattern\":\"(\"}", "schema: #: pattern, character 1: the group does not end",
     KT_E_UNSUPPORTED},
    {"{\"pattern\":\"a(?=b)\"}", "look-around", KT_E_UNSUPPORTED},
    {"{\"pattern\":\"(a)\\\\1\"}", "character 4: this escape", KT_E_UNSUPPORTED},
    {"{\"pattern\":\"a\\\\b\"}", "this escape", KT_E_UNSUPPORTED},
    {"{\"pattern\":\"a^b\"}", "anchor", KT_E_UNSUPPORTED},
    {"{\"pattern\":\"*\"}", "nothing to repeat", KT_E_UNSUPPORTED},
    {"{\"pattern\":\"[z-a]\"}", "ends before it begins", KT_E_UNSUPPORTED},
    {"{\"pattern\":\"a)\"}", "')' without", KT_E_UNSUPPORTED},
    {"{\"pattern\":\"a\",\"minLength\":2}", "together with a length", KT_E_UNSUPPORTED},
    {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "several patterns", KT_E_UNSUPPORTED},
    {"{\"enum\":[1,2],\"minimum\":2}", "'minimum' beside 'enum'", KT_E_UNSUPPORTED},
    {"{\"enum\":[]}", "'enum'", KT_E_INVALID},
    {"{\"minimum\":\"1\"}", "'minimum' is a string", KT_E_INVALID},
    {"{\"maxLength\":-1}", "'maxLength'", KT_E_INVALID},
    {"{\"maxItems\":20000}", "at most 10000", KT_E_UNSUPPORTED},
    {"{\"anyOf\":[]}", "'anyOf'", KT_E_INVALID},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "/oneOf/0 and /oneOf/1",
     KT_E_UNSUPPORTED},
    {"{\"$ref\":\"other.json\"}", "'$ref' is 'other.json'", KT_E_UNSUPPORTED},
    {"{\"$ref\":\"#/$defs/none\"}", "there is no '#/$defs/none'", KT_E_INVALID},
    {"{\"$ref\":\"#\"}", "comes back to itself", KT_E_INVALID},
    {"{\"allOf\":[{\"$ref\":\"#\"}]}", "comes back to itself", KT_E_INVALID},
    {"{\"anyOf\":[{\"$ref\":\"#\"},{}]}", "comes back to itself", KT_E_INVALID},
    {"{\"type\":\"integer\",\"enum\":[\"a\"]}", "never ends", KT_E_INVALID},
    {"{\"allOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "never ends", KT_E_INVALID},
    {"false", "never ends", KT_E_INVALID},
    {"{\"properties\":{\"a\":false},\"required\":[\"a\"]}", "'a' is required, but not allowed",
     KT_E_INVALID},
    {"{\"required\":[\"a\"],\"additionalProperties\":false}", "required, but not allowed",
     KT_E_INVALID},
    {"{\"properties\":{\"a\":{}},\"minProperties\":1}", "'minProperties' beside", KT_E_UNSUPPORTED},
    {"{\"properties\":[]}", "'properties' is no object", KT_E_INVALID},
    {"{\"required\":[1]}", "'required'", KT_E_INVALID},
    {"{\"properties\":{\"v\":{\"$ref\":\"#\"}},\"required\":[\"v\"]}", "never ends", KT_E_INVALID},
};

Test(grammar_schema, what_cannot_be_held_to_is_refused_by_name) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        kt_err err = {KT_OK, ""};
        kt_status st;
        kt_grammar *g = make(NULL, refusals[i].schema, &st, &err);
        cr_expect_eq(st, refusals[i].status, "%s: %s (%s)", refusals[i].schema, kt_status_name(st),
                     err.message);
        cr_expect(strstr(err.message, refusals[i].words), "%s: '%s' lacks '%s'", refusals[i].schema,
                  err.message, refusals[i].words);
        cr_expect_null(g);
        kt_grammar_destroy(g);
    }
}

/* Long lists whose comparison would take minutes. */
Test(grammar_schema, work_has_limits) {
    static const struct {
        const char *keyword, *item;
        int n;
        kt_status status;
    } lists[] = {{"oneOf", "{\"const\":%d}", 100, KT_OK},
                 {"oneOf", "{\"const\":%d}", 2000, KT_E_UNSUPPORTED},
                 {"enum", "%d", 30000, KT_OK}};

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        size_t room = 64 + (size_t)lists[i].n * 32, n = 0;
        char *text = malloc(room);
        kt_err err = {KT_OK, ""};
        kt_grammar *g;
        kt_status st;
        n += (size_t)snprintf(text, room, "{\"%s\":[", lists[i].keyword);
        for (int k = 0; k < lists[i].n; k++) {
            if (k) text[n++] = ',';
            n += (size_t)snprintf(text + n, room - n, lists[i].item, k);
        }
        snprintf(text + n, room - n, "]}");
        g = make(NULL, text, &st, &err);
        cr_expect_eq(st, lists[i].status, "%s of %d: %s", lists[i].keyword, lists[i].n,
                     err.message);
        if (g) cr_expect(kt_grammar_takes(g, "99", 2));
        kt_grammar_destroy(g);
        free(text);
    }
}

/* ---- a validator of its own, for the keywords that random schemas have ---- */

static bool obeys(const kt_json *root, const kt_json *schema, const kt_json *value);

static bool has_type(const char *name, const kt_json *value) {
    kt_json_type type = kt_json_type_of(value);
    if (strcmp(name, "integer") == 0) return kt_json_is_integer(value);
    if (strcmp(name, "boolean") == 0) return type == KT_JSON_BOOL;
    return strcmp(name, kt_json_type_name(type)) == 0;
}

static size_t characters(const kt_json *string) {
    size_t size, n = 0;
    const char *text = kt_json_string(string, &size);
    for (size_t i = 0; i < size; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static bool obeys_object(const kt_json *root, const kt_json *schema, const kt_json *value) {
    const kt_json *named = kt_json_get(schema, "properties");
    const kt_json *required = kt_json_get(schema, "required");
    const kt_json *others = kt_json_get(schema, "additionalProperties");

    for (size_t i = 0; i < kt_json_length(required); i++)
        if (!kt_json_get(value, kt_json_string(kt_json_at(required, i), NULL))) return false;
    for (size_t i = 0; i < kt_json_length(value); i++) {
        const char *key;
        size_t size;
        const kt_json *member = kt_json_member(value, i, &key, &size);
        const kt_json *rule = kt_json_get_n(named, key, size);
        if (!rule) rule = others;
        if (rule && !obeys(root, rule, member)) return false;
    }
    return true;
}

static bool obeys_array(const kt_json *root, const kt_json *schema, const kt_json *value) {
    const kt_json *prefix = kt_json_get(schema, "prefixItems"),
                  *items = kt_json_get(schema, "items");
    size_t n = kt_json_length(value);

    if ((int64_t)n < kt_json_int(kt_json_get(schema, "minItems"), 0)) return false;
    if ((int64_t)n > kt_json_int(kt_json_get(schema, "maxItems"), 1 << 30)) return false;
    for (size_t i = 0; i < n; i++) {
        const kt_json *rule = i < kt_json_length(prefix) ? kt_json_at(prefix, i) : items;
        if (rule && !obeys(root, rule, kt_json_at(value, i))) return false;
    }
    return true;
}

static bool obeys_number(const kt_json *schema, double x) {
    return x >= kt_json_double(kt_json_get(schema, "minimum"), -INFINITY) &&
           x <= kt_json_double(kt_json_get(schema, "maximum"), INFINITY) &&
           x > kt_json_double(kt_json_get(schema, "exclusiveMinimum"), -INFINITY) &&
           x < kt_json_double(kt_json_get(schema, "exclusiveMaximum"), INFINITY);
}

static bool is_same(const kt_json *a, const kt_json *b) {
    kt_json_writer x = {.text = NULL}, y = {.text = NULL};
    bool same;
    kt_json_put_value(&x, a);
    kt_json_put_value(&y, b);
    same = strcmp(kt_json_writer_text(&x, NULL), kt_json_writer_text(&y, NULL)) == 0;
    kt_json_writer_deinit(&x);
    kt_json_writer_deinit(&y);
    return same;
}

static int count_obeyed(const kt_json *root, const kt_json *list, const kt_json *value) {
    int n = 0;
    for (size_t i = 0; i < kt_json_length(list); i++) n += obeys(root, kt_json_at(list, i), value);
    return n;
}

static bool obeys(const kt_json *root, const kt_json *schema, const kt_json *value) {
    const kt_json *v, *type = kt_json_get(schema, "type");
    kt_json_type kind = kt_json_type_of(value);
    bool ok = !type;

    if (kt_json_type_of(schema) == KT_JSON_BOOL) return kt_json_bool(schema, false);
    if (type && kt_json_type_of(type) == KT_JSON_STRING)
        ok = has_type(kt_json_string(type, NULL), value);
    for (size_t i = 0; i < kt_json_length(type) && kt_json_type_of(type) == KT_JSON_ARRAY; i++)
        ok |= has_type(kt_json_string(kt_json_at(type, i), NULL), value);
    if (!ok) return false;
    if ((v = kt_json_get(schema, "const")) && !is_same(v, value)) return false;
    if ((v = kt_json_get(schema, "enum"))) {
        for (ok = false; !ok; ok = true) {
            size_t i = 0;
            while (i < kt_json_length(v) && !is_same(kt_json_at(v, i), value)) i++;
            if (i == kt_json_length(v)) return false;
        }
    }
    if ((v = kt_json_get(schema, "$ref")) &&
        !obeys(root, kt_json_get(kt_json_get(root, "$defs"), kt_json_string(v, NULL) + 8), value))
        return false;
    if ((v = kt_json_get(schema, "anyOf")) && count_obeyed(root, v, value) == 0) return false;
    if ((v = kt_json_get(schema, "oneOf")) && count_obeyed(root, v, value) != 1) return false;
    if ((v = kt_json_get(schema, "allOf")) &&
        count_obeyed(root, v, value) != (int)kt_json_length(v))
        return false;
    if (kind == KT_JSON_OBJECT) return obeys_object(root, schema, value);
    if (kind == KT_JSON_ARRAY) return obeys_array(root, schema, value);
    if (kind == KT_JSON_NUMBER) return obeys_number(schema, kt_json_double(value, NAN));
    if (kind != KT_JSON_STRING) return true;
    return (int64_t)characters(value) >= kt_json_int(kt_json_get(schema, "minLength"), 0) &&
           (int64_t)characters(value) <= kt_json_int(kt_json_get(schema, "maxLength"), 1 << 30);
}

/* ---- random schemas ---- */

static void put_schema(kt_json_writer *w, kt_rng *rng, int depth);

static void put_bounds(kt_json_writer *w, kt_rng *rng, bool is_integer) {
    static const char *const words[] = {"minimum", "exclusiveMinimum", "maximum",
                                        "exclusiveMaximum"};
    double low = floor((kt_rng_double(rng) - 0.6) * 300), span = 3 + kt_rng_below(rng, 2000);
    if (!is_integer) low /= 8;
    if (kt_rng_below(rng, 3)) kt_json_add_double(w, words[kt_rng_below(rng, 2)], low);
    if (kt_rng_below(rng, 3)) kt_json_add_double(w, words[2 + kt_rng_below(rng, 2)], low + span);
}

static void put_object(kt_json_writer *w, kt_rng *rng, int depth) {
    static const char *const names[] = {"name", "id", "type", "a", "ab", "é"};
    unsigned n = (unsigned)kt_rng_below(rng, 5), required = (unsigned)kt_rng_below(rng, 64);

    kt_json_add_string(w, "type", "object");
    kt_json_key(w, "properties");
    kt_json_begin_object(w);
    for (unsigned i = 0; i < n; i++) {
        kt_json_key(w, names[i]);
        put_schema(w, rng, depth + 1);
    }
    kt_json_end_object(w);
    kt_json_key(w, "required");
    kt_json_begin_array(w);
    for (unsigned i = 0; i < n; i++)
        if (required >> i & 1) kt_json_put_string(w, names[i]);
    kt_json_end_array(w);
    if (kt_rng_below(rng, 3) == 0) {
        kt_json_key(w, "additionalProperties");
        put_schema(w, rng, depth + 1);
    }
}

static void put_array(kt_json_writer *w, kt_rng *rng, int depth) {
    int min = (int)kt_rng_below(rng, 3);

    kt_json_add_string(w, "type", "array");
    if (kt_rng_below(rng, 3) == 0) {
        kt_json_key(w, "prefixItems");
        kt_json_begin_array(w);
        for (int i = 0; i < 2; i++) put_schema(w, rng, depth + 1);
        kt_json_end_array(w);
    }
    kt_json_key(w, "items");
    put_schema(w, rng, depth + 1);
    if (kt_rng_below(rng, 2)) kt_json_add_int(w, "minItems", min);
    if (kt_rng_below(rng, 2)) kt_json_add_int(w, "maxItems", min + (int)kt_rng_below(rng, 3));
}

static void put_any_of(kt_json_writer *w, kt_rng *rng, int depth) {
    kt_json_key(w, "anyOf");
    kt_json_begin_array(w);
    for (int i = 0; i < 2; i++) put_schema(w, rng, depth + 1);
    kt_json_end_array(w);
}

static void put_schema(kt_json_writer *w, kt_rng *rng, int depth) {
    static const char values[] = "[\"red\",\"green\",null,12,{\"a\":[1]}]";
    static const char types[] = "[\"null\",\"string\"]";
    int min = (int)kt_rng_below(rng, 3);

    kt_json_begin_object(w);
    switch (kt_rng_below(rng, depth > 2 ? 6 : 10)) {
    case 0:
        kt_json_add_string(w, "type", "integer");
        put_bounds(w, rng, true);
        break;
    case 1:
        kt_json_add_string(w, "type", "number");
        put_bounds(w, rng, false);
        break;
    case 2:
        kt_json_add_string(w, "type", "string");
        kt_json_add_int(w, "minLength", min);
        if (kt_rng_below(rng, 2)) kt_json_add_int(w, "maxLength", min + (int)kt_rng_below(rng, 9));
        break;
    case 3: kt_json_add_string(w, "type", "boolean"); break;
    case 4:
        kt_json_key(w, "enum");
        kt_json_put_raw(w, values, strlen(values));
        break;
    case 5:
        kt_json_key(w, "type");
        kt_json_put_raw(w, types, strlen(types));
        break;
    case 6: put_array(w, rng, depth); break;
    case 7: put_any_of(w, rng, depth); break;
    case 8: kt_json_add_string(w, "$ref", "#/$defs/tree"); break;
    default: put_object(w, rng, depth); break;
    }
    kt_json_end_object(w);
}

static void make_random(kt_json_writer *w, kt_rng *rng) {
    static const char tree[] = "{\"tree\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":"
                               "\"integer\"},\"a\":{\"type\":\"array\",\"items\":{\"$ref\":"
                               "\"#/$defs/tree\"},\"maxItems\":2}},\"required\":[\"id\"]}}";
    kt_json_begin_object(w);
    kt_json_key(w, "$defs");
    kt_json_put_raw(w, tree, sizeof tree - 1);
    kt_json_key(w, "allOf");
    kt_json_begin_array(w);
    put_schema(w, rng, 0);
    kt_json_end_array(w);
    kt_json_end_object(w);
}

Test(grammar_schema, texts_drawn_from_masks_obey_random_schemas, .timeout = 300) {
    kt_vocabulary *v = kt_small_vocabulary();
    int checked = 0, schemas = 0;

    for (uint64_t seed = 0; seed < 40; seed++) {
        kt_json_writer w = {.text = NULL};
        kt_json_doc *schema = NULL;
        kt_err err = {KT_OK, ""};
        kt_grammar *g = NULL;
        kt_rng rng;
        const char *text;
        size_t size;
        kt_status st;
        kt_rng_seed(&rng, seed);
        make_random(&w, &rng);
        text = kt_json_writer_text(&w, &size);
        cr_assert_eq(kt_json_parse(text, size, NULL, &schema, &err), KT_OK, "%s", err.message);
        st = kt_grammar_from_schema(v, kt_json_root(schema), &g, &err);
        cr_assert(st == KT_OK || strstr(err.message, "never ends"), "%s: %s", text, err.message);
        schemas += st == KT_OK;
        for (int walk = 0; walk < 12 && g; walk++) {
            char out[16384];
            size_t n = sizeof out;
            kt_json_doc *value = NULL;
            kt_grammar_walk(g, v, &rng, walk < 2 ? 12 : 0, out, &n);
            if (n == 0) continue; /* it did not come to an end */
            st = kt_json_parse(out, n, NULL, &value, &err);
            if (st != KT_OK && strstr(err.message, "two members")) continue; /* a key drawn twice */
            cr_assert_eq(st, KT_OK, "%s: '%.*s': %s", text, (int)n, out, err.message);
            cr_expect(obeys(kt_json_root(schema), kt_json_root(schema), kt_json_root(value)),
                      "%s: '%.*s' does not obey", text, (int)n, out);
            checked++;
            kt_json_destroy(value);
        }
        kt_grammar_destroy(g);
        kt_json_destroy(schema);
        kt_json_writer_deinit(&w);
    }
    cr_expect(schemas >= 35 && checked >= 300, "%d schemas, %d texts", schemas, checked);
    kt_vocabulary_destroy(v);
}

Test(grammar_schema, any_object_is_json) {
    kt_vocabulary *v = kt_small_vocabulary();
    kt_grammar *g;
    kt_rng rng;
    int checked = 0;

    cr_assert_eq(kt_grammar_json_object(v, &g, NULL), KT_OK);
    cr_expect(kt_grammar_takes(g, "{\"a\": [1, {\"b\": null}]}", 23));
    cr_expect(!kt_grammar_takes(g, "[1]", 3));
    for (uint64_t seed = 0; seed < 40; seed++) {
        char out[16384];
        size_t n = sizeof out;
        kt_json_doc *doc = NULL;
        kt_err err = {KT_OK, ""};
        kt_rng_seed(&rng, seed);
        kt_grammar_walk(g, v, &rng, seed < 4 ? 20 : 0, out, &n);
        if (n == 0) continue;
        if (kt_json_parse(out, n, NULL, &doc, &err) != KT_OK)
            cr_expect(strstr(err.message, "two members"), "'%.*s': %s", (int)n, out, err.message);
        checked++;
        kt_json_destroy(doc);
    }
    cr_expect(checked > 20);
    kt_grammar_destroy(g);
    kt_vocabulary_destroy(v);
}

/* An envelope in GBNF around schemas, as a call of a tool is. */
Test(grammar_schema, gbnf_may_call_schemas) {
    static const char text[] = "root ::= \"<call>\" (\"f \" f | \"g \" g) \"</call>\"";
    static const char schema[] =
        "{\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]}";
    kt_json_doc *one = NULL, *two = NULL;
    kt_grammar_symbol symbols[3] = {{"f", NULL}, {"g", NULL}, {"root", NULL}};
    kt_err err = {KT_OK, ""};
    kt_grammar *g;

    cr_assert_eq(kt_json_parse(schema, sizeof schema - 1, NULL, &one, NULL), KT_OK);
    cr_assert_eq(kt_json_parse("{\"type\":\"null\"}", 15, NULL, &two, NULL), KT_OK);
    symbols[0].schema = kt_json_root(one);
    symbols[1].schema = symbols[2].schema = kt_json_root(two);
    cr_assert_eq(kt_grammar_from_gbnf(NULL, text, sizeof text - 1, symbols, 2, &g, &err), KT_OK,
                 "%s", err.message);
    cr_expect(kt_grammar_takes(g, "<call>f {\"x\":1}</call>", 22));
    cr_expect(kt_grammar_takes(g, "<call>g null</call>", 19));
    cr_expect(!kt_grammar_takes(g, "<call>f null</call>", 19));
    kt_grammar_destroy(g);
    cr_expect_eq(kt_grammar_from_gbnf(NULL, text, sizeof text - 1, symbols, 3, &g, &err),
                 KT_E_INVALID);
    cr_expect_eq(kt_grammar_from_gbnf(NULL, "root ::= f\nf ::= \"a\"", 20, symbols, 2, &g, &err),
                 KT_E_INVALID);
    cr_expect(strstr(err.message, "2:1: rule 'f' is given from outside"), "%s", err.message);
    kt_json_destroy(one);
    kt_json_destroy(two);
}
