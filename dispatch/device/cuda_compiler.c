/* NVRTC by dlopen. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/device/cuda_compiler.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "dispatch/device/cubin_cache.h"

enum { OLDEST_MAJOR = 12, MAX_OPTIONS = 4 + KT_MAX_PARAMS, MAX_TARGETS = 64, MAX_HEADERS = 20 };

/* NVRTC's C interface: a handle and numbers, 0 = success. */
typedef struct nvrtc_program *nvrtc_program;

typedef struct nvrtc {
    int (*version)(int *major, int *minor);
    int (*n_targets)(int *n);
    int (*targets)(int *sm);
    int (*create)(nvrtc_program *program, const char *source, const char *name, int n_headers,
                  const char *const *headers, const char *const *header_names);
    int (*destroy)(nvrtc_program *program);
    int (*compile)(nvrtc_program program, int n, const char *const *options);
    int (*cubin_size)(nvrtc_program program, size_t *bytes);
    int (*cubin)(nvrtc_program program, char *out);
    int (*ptx_size)(nvrtc_program program, size_t *bytes);
    int (*ptx)(nvrtc_program program, char *out);
    int (*log_size)(nvrtc_program program, size_t *bytes);
    int (*log)(nvrtc_program program, char *out);
    const char *(*error_text)(int code);
} nvrtc;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {{"nvrtcVersion", offsetof(nvrtc, version)},
                 {"nvrtcGetNumSupportedArchs", offsetof(nvrtc, n_targets)},
                 {"nvrtcGetSupportedArchs", offsetof(nvrtc, targets)},
                 {"nvrtcCreateProgram", offsetof(nvrtc, create)},
                 {"nvrtcDestroyProgram", offsetof(nvrtc, destroy)},
                 {"nvrtcCompileProgram", offsetof(nvrtc, compile)},
                 {"nvrtcGetCUBINSize", offsetof(nvrtc, cubin_size)},
                 {"nvrtcGetCUBIN", offsetof(nvrtc, cubin)},
                 {"nvrtcGetPTXSize", offsetof(nvrtc, ptx_size)},
                 {"nvrtcGetPTX", offsetof(nvrtc, ptx)},
                 {"nvrtcGetProgramLogSize", offsetof(nvrtc, log_size)},
                 {"nvrtcGetProgramLog", offsetof(nvrtc, log)},
                 {"nvrtcGetErrorString", offsetof(nvrtc, error_text)}};

struct kt_cuda_compiler {
    void *library;
    nvrtc call;
    int major, minor, n_targets;
    int sm[MAX_TARGETS];
    char name[512];
};

/* ---- opening ---- */

static const char *const places[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                     "/usr/local/cuda/lib64/libnvrtc.so",
                                     "/usr/lib/cuda/lib64/libnvrtc.so"};

/* It stays when it is closed: it keeps memory that nobody could find again without it. */
enum { HOW_TO_OPEN = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE };

/* Where `./quickstart gpu` puts what it fetches. */
static const char *fetched_place(char *out, size_t bytes) {
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");

    if (data && *data)
        snprintf(out, bytes, "%s/kt/nvrtc/libnvrtc.so", data);
    else
        snprintf(out, bytes, "%s/.local/share/kt/nvrtc/libnvrtc.so", home ? home : "");
    return out;
}

static void *open_library(const char **found) {
    static char fetched[400];
    const char *wanted = getenv("KT_NVRTC");
    void *library;

    if (wanted && *wanted) {
        *found = wanted;
        return dlopen(wanted, HOW_TO_OPEN);
    }
    *found = fetched_place(fetched, sizeof fetched);
    library = dlopen(fetched, HOW_TO_OPEN);
    for (size_t i = 0; !library && i < sizeof places / sizeof *places; i++) {
        *found = places[i];
        library = dlopen(places[i], HOW_TO_OPEN);
    }
    return library;
}

static kt_status not_found(kt_err *err) {
    const char *wanted = getenv("KT_NVRTC");
    const char *why = dlerror();
    char tried[256] = "";

    if (wanted && *wanted) return kt_fail(err, KT_E_NOT_FOUND, "KT_NVRTC: %s", why ? why : wanted);
    for (size_t i = 0, n = 0; i < sizeof places / sizeof *places; i++)
        n += (size_t)snprintf(tried + n, sizeof tried - n, "%s%s", i ? ", " : "", places[i]);
    return kt_fail(err, KT_E_NOT_FOUND,
                   "no NVRTC to compile GPU kernels with: tried %s; `./quickstart gpu` fetches it, "
                   "KT_NVRTC=PATH names another",
                   tried);
}

static kt_status load(kt_cuda_compiler *c, kt_err *err) {
    const char *found = NULL;
    Dl_info info;

    c->library = open_library(&found);
    if (!c->library) return not_found(err);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(c->library, functions[i].name);
        if (!f)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%s: it has no function %s; NVRTC %d or newer is "
                           "expected",
                           found, functions[i].name, OLDEST_MAJOR);
        memcpy((char *)&c->call + functions[i].offset, &f, sizeof f);
    }
    if (c->call.version(&c->major, &c->minor) != 0 || c->major < OLDEST_MAJOR)
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: NVRTC %d.%d, expected %d.0 or newer", found,
                       c->major, c->minor, OLDEST_MAJOR);
    if (c->call.n_targets(&c->n_targets) != 0 || c->n_targets > MAX_TARGETS ||
        c->call.targets(c->sm) != 0)
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: it does not say which GPUs it compiles for",
                       found);
    if (dladdr(dlsym(c->library, "nvrtcVersion"), &info) && info.dli_fname) found = info.dli_fname;
    snprintf(c->name, sizeof c->name, "NVRTC %d.%d of %s", c->major, c->minor, found);
    return KT_OK;
}

kt_status kt_cuda_compiler_open(kt_cuda_compiler **out, kt_err *err) {
    kt_cuda_compiler *c = calloc(1, sizeof *c);
    kt_status st;

    *out = NULL;
    if (!c) return kt_fail(err, KT_E_NOMEM, "no memory for a compiler");
    st = load(c, err);
    if (st != KT_OK) {
        kt_cuda_compiler_close(c);
        return st;
    }
    *out = c;
    return KT_OK;
}

void kt_cuda_compiler_close(kt_cuda_compiler *c) {
    if (!c) return;
    if (c->library) dlclose(c->library);
    free(c);
}

const char *kt_cuda_compiler_name(const kt_cuda_compiler *c) {
    return c->name;
}

bool kt_cuda_compiler_knows(const kt_cuda_compiler *c, const kt_cuda_target *target) {
    for (int i = 0; i < c->n_targets; i++)
        if (c->sm[i] == target->sm) return true;
    return false;
}

/* ---- compiling ---- */

/* The compiler's command line, one string with a NUL after each option. */
typedef struct options {
    char text[MAX_OPTIONS][48];
    const char *list[MAX_OPTIONS];
    int n;
    bool as_ptx;
} options;

static void make_options(const kt_cuda_kernel *kernel, const kt_config *config,
                         const kt_cuda_target *target, bool as_ptx, options *o) {
    o->as_ptx = as_ptx;
    snprintf(o->text[0], sizeof o->text[0], "--gpu-architecture=%s_%s", as_ptx ? "compute" : "sm",
             target->name);
    snprintf(o->text[1], sizeof o->text[1], "--std=c++17");
    o->n = 2;
    for (int32_t i = 0; i < kernel->param_count; i++, o->n++)
        snprintf(o->text[o->n], sizeof o->text[0], "-DKT_C%d=%d", (int)i, (int)config->value[i]);
    for (int i = 0; i < o->n; i++) o->list[i] = o->text[i];
}

/* What is compiled: a kernel's text and the headers of ours that it includes, each once,
 * with those that they include. */
typedef struct texts {
    const char *source, *header[MAX_HEADERS], *header_name[MAX_HEADERS];
    char name[MAX_HEADERS][64];
    int n;
} texts;

static bool has_header(const texts *t, const char *name) {
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->name[i], name) == 0) return true;
    return false;
}

/* Headers that the build did not embed are of the emulator's side. */
static kt_status add_headers(texts *t, const char *text, kt_err *err) {
    static const char include[] = "#include \"";

    for (const char *at = text; (at = strstr(at, include));) {
        char name[64];
        const char *header, *file;
        at += sizeof include - 1;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "\""), at);
        file = strrchr(name, '/');
        header = kt_cuda_source(file ? file + 1 : name);
        if (!header || has_header(t, name)) continue;
        if (t->n == MAX_HEADERS)
            return kt_fail(err, KT_E_INTERNAL, "device code includes more than %d headers",
                           MAX_HEADERS);
        memcpy(t->name[t->n], name, sizeof name);
        t->header[t->n] = header;
        t->header_name[t->n] = t->name[t->n];
        t->n++;
        KT_TRY(add_headers(t, header, err));
    }
    return KT_OK;
}

static kt_status collect_texts(texts *t, const char *file, kt_err *err) {
    t->n = 0;
    t->source = kt_cuda_source(file);
    if (!t->source) return kt_fail(err, KT_E_INTERNAL, "%s: its text is not in this build", file);
    return add_headers(t, t->source, err);
}

/* The first line of NVRTC's log that names an error, else its first. */
static void first_error(char *log) {
    char *line = log, *error = strstr(log, "error");

    if (error)
        for (line = error; line > log && line[-1] != '\n';) line--;
    memmove(log, line, strlen(line) + 1);
    log[strcspn(log, "\n")] = 0;
}

/* What it said, malloc'd; NULL = nothing, or no memory for it. */
static char *read_log(const kt_cuda_compiler *c, nvrtc_program program) {
    size_t bytes = 0;
    char *log;

    if (c->call.log_size(program, &bytes) != 0 || bytes <= 1) return NULL;
    log = calloc(1, bytes + 1);
    if (log && c->call.log(program, log) == 0) return log;
    free(log);
    return NULL;
}

static bool says_serial(const kt_cuda_compiler *c, nvrtc_program program) {
    char *log = read_log(c, program);
    const bool is_serial = log && strstr(log, "wgmma.mma_async instructions are serialized");

    free(log);
    return is_serial;
}

static kt_status failed(kt_cuda_compiler *c, nvrtc_program program, const char *name, int code,
                        kt_err *err) {
    char *log = read_log(c, program);
    kt_status st;

    if (log) first_error(log);
    st = kt_fail(err, KT_E_FORMAT, "%s: %s: %s", name, c->call.error_text(code),
                 log && *log ? log : "it says no more");
    free(log);
    return st;
}

static kt_status take_code(kt_cuda_compiler *c, nvrtc_program program, const char *name,
                           bool as_ptx, kt_cubin *out, kt_err *err) {
    const int code =
        as_ptx ? c->call.ptx_size(program, &out->bytes) : c->call.cubin_size(program, &out->bytes);

    if (code != 0 || out->bytes == 0)
        return kt_fail(err, KT_E_INTERNAL, "%s: NVRTC made no machine code", name);
    out->data = malloc(out->bytes);
    if (!out->data)
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu bytes of code", name, out->bytes);
    if ((as_ptx ? c->call.ptx(program, (char *)out->data)
                : c->call.cubin(program, (char *)out->data)) != 0)
        return kt_fail(err, KT_E_INTERNAL, "%s: NVRTC does not hand out its machine code", name);
    return KT_OK;
}

static kt_status compile(kt_cuda_compiler *c, const char *name, const texts *t, const options *o,
                         kt_cubin *out, kt_err *err) {
    nvrtc_program program = NULL;
    kt_status st;
    int code;

    code = c->call.create(&program, t->source, name, t->n, t->header, t->header_name);
    if (code != 0) return kt_fail(err, KT_E_INTERNAL, "%s: %s", name, c->call.error_text(code));
    code = c->call.compile(program, o->n, o->list);
    out->is_serial = code == 0 && says_serial(c, program);
    st = code == 0 ? take_code(c, program, name, o->as_ptx, out, err)
                   : failed(c, program, name, code, err);
    c->call.destroy(&program);
    return st;
}

/* Everything that the code depends on, as one text. */
static char *make_key(const kt_cuda_compiler *c, const texts *t, const options *o, size_t *bytes) {
    size_t size = strlen(t->source) + sizeof o->text + 256, n;
    char *key;

    for (int i = 0; i < t->n; i++) size += strlen(t->header[i]);
    if (!(key = malloc(size))) return NULL;
    n = (size_t)snprintf(key, size, "NVRTC %d.%d\n", c->major, c->minor);
    for (int i = 0; i < o->n; i++) n += (size_t)snprintf(key + n, size - n, "%s\n", o->text[i]);
    for (int i = 0; i < t->n; i++) n += (size_t)snprintf(key + n, size - n, "%s", t->header[i]);
    n += (size_t)snprintf(key + n, size - n, "%s", t->source);
    *bytes = n;
    return key;
}

static kt_status check_request(const kt_cuda_compiler *c, const kt_cuda_kernel *kernel,
                               const kt_config *config, const kt_cuda_target *target, kt_err *err) {
    const char *why = kernel->refuse(config, target);

    if (!(kernel->targets >> (target - kt_cuda_targets) & 1))
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: it is not for sm_%s", kernel->name,
                       target->name);
    if (why) return kt_fail(err, KT_E_UNSUPPORTED, "%s: %s", kernel->name, why);
    if (!kt_cuda_compiler_knows(c, target))
        return kt_fail(err, KT_E_UNSUPPORTED, "%s does not compile for sm_%s", c->name,
                       target->name);
    return KT_OK;
}

static kt_status make_code(kt_cuda_compiler *c, const kt_cuda_kernel *kernel,
                           const kt_config *config, const kt_cuda_target *target, bool as_ptx,
                           const char *folder, kt_cubin *out, kt_err *err) {
    texts t;
    const int64_t since = kt_clock_ns();
    char file[128], *key = NULL;
    size_t key_bytes = 0;
    kt_status st = KT_OK;
    options o;

    *out = (kt_cubin){0};
    KT_TRY(check_request(c, kernel, config, target, err));
    snprintf(file, sizeof file, "%s.cu", kernel->name);
    KT_TRY(collect_texts(&t, file, err));
    make_options(kernel, config, target, as_ptx, &o);
    if (folder && !(key = make_key(c, &t, &o, &key_bytes)))
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for its key", file);
    if (folder)
        out->is_cached = kt_cubin_cache_get(folder, key, key_bytes, &out->data, &out->bytes);
    if (!out->is_cached) {
        st = compile(c, file, &t, &o, out, err);
        /* A cache that cannot be written costs time, nothing else. */
        if (st == KT_OK && folder && !out->is_serial)
            kt_cubin_cache_put(folder, key, key_bytes, out->data, out->bytes, NULL);
    }
    free(key);
    if (st != KT_OK) kt_cubin_free(out);
    out->ms = (double)(kt_clock_ns() - since) * 1e-6;
    return st;
}

kt_status kt_cuda_compile(kt_cuda_compiler *c, const kt_cuda_kernel *kernel,
                          const kt_config *config, const kt_cuda_target *target, const char *folder,
                          kt_cubin *out, kt_err *err) {
    return make_code(c, kernel, config, target, false, folder, out, err);
}

kt_status kt_cuda_compile_ptx(kt_cuda_compiler *c, const kt_cuda_kernel *kernel,
                              const kt_config *config, const char *folder, kt_cubin *out,
                              kt_err *err) {
    return make_code(c, kernel, config, kt_cuda_baseline(), true, folder, out, err);
}

void kt_cubin_free(kt_cubin *cubin) {
    free(cubin->data);
    *cubin = (kt_cubin){0};
}
