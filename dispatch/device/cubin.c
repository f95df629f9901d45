/* A reader of ELF64 for cubin.h. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/cubin.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

enum {
    MACHINE_CUDA = 190,
    TYPE_SYMBOLS = 2,
    ATTRIBUTE_REGISTERS = 0x2f,
    ATTRIBUTE_FRAME = 0x11,
    FORMAT_SIZED = 4,
    INSTRUCTION = 16
};

static const int opcode_bits[KT_OPCODE_COUNT] = {
    [KT_OPCODE_HMMA] = 0x23c,  [KT_OPCODE_IMMA] = 0x237,  [KT_OPCODE_QMMA] = 0x27a,
    [KT_OPCODE_HGMMA] = 0x9f0, [KT_OPCODE_QGMMA] = 0x9f3, [KT_OPCODE_ACQBULK] = 0x82e};

typedef struct elf {
    const uint8_t *data;
    size_t bytes, sections_at;
    uint32_t n_sections, names;
} elf;

typedef struct section {
    const char *name;
    const uint8_t *data;
    size_t bytes;
    uint32_t type, link;
} section;

static uint64_t number(const uint8_t *at, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)at[i] << (8 * i);
    return v;
}

static bool is_inside(const elf *e, uint64_t offset, uint64_t size) {
    return offset <= e->bytes && size <= e->bytes - offset;
}

static kt_status raw_section(const elf *e, uint32_t i, section *out, kt_err *err) {
    const uint8_t *header = e->data + e->sections_at + (size_t)i * 64;
    const uint64_t offset = number(header + 24, 8), size = number(header + 32, 8);

    *out = (section){.type = (uint32_t)number(header + 4, 4),
                     .link = (uint32_t)number(header + 40, 4)};
    if (out->type == 8) return KT_OK; /* nothing in the file */
    if (!is_inside(e, offset, size))
        return kt_fail(err, KT_E_FORMAT, "cubin: section %u lies outside of its %zu bytes", i,
                       e->bytes);
    out->data = e->data + offset;
    out->bytes = size;
    return KT_OK;
}

/* The string at `at` of a section, "" when it does not end in it. */
static const char *text_at(const section *s, uint64_t at) {
    if (at >= s->bytes || !memchr(s->data + at, 0, s->bytes - at)) return "";
    return (const char *)s->data + at;
}

static kt_status get_section(const elf *e, uint32_t i, section *out, kt_err *err) {
    section names;

    KT_TRY(raw_section(e, e->names, &names, err));
    KT_TRY(raw_section(e, i, out, err));
    out->name = text_at(&names, number(e->data + e->sections_at + (size_t)i * 64, 4));
    /* bytes of what has none in the file: shared memory */
    if (out->type == 8) out->bytes = number(e->data + e->sections_at + (size_t)i * 64 + 32, 8);
    return KT_OK;
}

static kt_status open_elf(const void *data, size_t bytes, elf *e, kt_err *err) {
    static const uint8_t magic[5] = {0x7f, 'E', 'L', 'F', 2};

    *e = (elf){.data = data, .bytes = bytes};
    if (bytes < 64 || memcmp(data, magic, sizeof magic) != 0 ||
        number(e->data + 18, 2) != MACHINE_CUDA)
        return kt_fail(err, KT_E_FORMAT, "cubin: %zu bytes that are no ELF64 file of a GPU", bytes);
    e->sections_at = number(e->data + 40, 8);
    e->n_sections = (uint32_t)number(e->data + 60, 2);
    e->names = (uint32_t)number(e->data + 62, 2);
    if (number(e->data + 58, 2) != 64 || e->names >= e->n_sections ||
        !is_inside(e, e->sections_at, (uint64_t)e->n_sections * 64))
        return kt_fail(err, KT_E_FORMAT, "cubin: its table of sections is damaged");
    return KT_OK;
}

/* Sections .text.ENTRY and .nv.shared.ENTRY. */
static kt_status find_entry(const elf *e, const char *entry, section *code, uint32_t *code_index,
                            int *shared, kt_err *err) {
    char text[160], memory[160];
    section s;

    snprintf(text, sizeof text, ".text.%s", entry);
    snprintf(memory, sizeof memory, ".nv.shared.%s", entry);
    *code = (section){0};
    *shared = 0;
    for (uint32_t i = 0; i < e->n_sections; i++) {
        KT_TRY(get_section(e, i, &s, err));
        if (strcmp(s.name, text) == 0) *code = s, *code_index = i;
        if (strcmp(s.name, memory) == 0) *shared = (int)s.bytes;
    }
    if (!code->data) return kt_fail(err, KT_E_NOT_FOUND, "cubin: it has no entry '%s'", entry);
    return KT_OK;
}

/* The number of the symbol whose code is section `index`; -1 = none. */
static kt_status find_symbol(const elf *e, const char *entry, int64_t *out, kt_err *err) {
    section symbols, names;

    *out = -1;
    for (uint32_t i = 0; i < e->n_sections; i++) {
        KT_TRY(get_section(e, i, &symbols, err));
        if (symbols.type != TYPE_SYMBOLS) continue;
        if (symbols.link >= e->n_sections)
            return kt_fail(err, KT_E_FORMAT, "cubin: its symbols have no names");
        KT_TRY(get_section(e, symbols.link, &names, err));
        for (size_t at = 0; at + 24 <= symbols.bytes; at += 24)
            if (strcmp(text_at(&names, number(symbols.data + at, 4)), entry) == 0)
                *out = (int64_t)(at / 24);
    }
    return KT_OK;
}

/* Registers and frame of the symbol, from .nv.info. */
static void read_info(const section *info, int64_t symbol, kt_cubin_facts *out) {
    size_t at = 0;

    while (at + 4 <= info->bytes) {
        const int format = info->data[at], attribute = info->data[at + 1];
        const size_t size = format == FORMAT_SIZED ? number(info->data + at + 2, 2) : 0;
        const uint8_t *value = info->data + at + 4;
        at += 4 + size;
        if (size != 8 || at > info->bytes || (int64_t)number(value, 4) != symbol) continue;
        if (attribute == ATTRIBUTE_REGISTERS) out->registers = (int)number(value + 4, 4);
        if (attribute == ATTRIBUTE_FRAME) out->frame_bytes = (int)number(value + 4, 4);
    }
}

static void count_opcodes(const section *code, kt_cubin_facts *out) {
    for (size_t at = 0; at + INSTRUCTION <= code->bytes; at += INSTRUCTION) {
        const int opcode = (int)(number(code->data + at, 2) & 0xfff);
        for (int i = 0; i < KT_OPCODE_COUNT; i++) out->opcodes[i] += opcode == opcode_bits[i];
    }
}

kt_status kt_cubin_inspect(const void *data, size_t bytes, const char *entry, kt_cubin_facts *out,
                           kt_err *err) {
    uint32_t index = 0;
    section code, s;
    int64_t symbol;
    elf e;

    *out = (kt_cubin_facts){.registers = -1, .frame_bytes = -1};
    KT_TRY(open_elf(data, bytes, &e, err));
    out->sm = (int)number(e.data + 48 + 1, 1);
    KT_TRY(find_entry(&e, entry, &code, &index, &out->shared_bytes, err));
    KT_TRY(find_symbol(&e, entry, &symbol, err));
    for (uint32_t i = 0; i < e.n_sections; i++) {
        KT_TRY(get_section(&e, i, &s, err));
        if (strcmp(s.name, ".nv.info") == 0) read_info(&s, symbol, out);
    }
    out->code_bytes = code.bytes;
    count_opcodes(&code, out);
    if (out->registers < 0 || out->frame_bytes < 0)
        return kt_fail(err, KT_E_FORMAT, "cubin: it does not say how many registers '%s' takes",
                       entry);
    return KT_OK;
}
