/* An NVRTC whose machine code is the text of its options. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program {
    char name[64], text[1024];
};

int nvrtcVersion(int *major, int *minor);
int nvrtcGetNumSupportedArchs(int *n);
int nvrtcGetSupportedArchs(int *sm);
int nvrtcCreateProgram(struct program **out, const char *source, const char *name, int n,
                       const char *const *headers, const char *const *names);
int nvrtcDestroyProgram(struct program **p);
int nvrtcCompileProgram(struct program *p, int n, const char *const *options);
int nvrtcGetCUBINSize(struct program *p, size_t *bytes);
int nvrtcGetCUBIN(struct program *p, char *out);
int nvrtcGetPTXSize(struct program *p, size_t *bytes);
int nvrtcGetPTX(struct program *p, char *out);
int nvrtcGetProgramLogSize(struct program *p, size_t *bytes);
int nvrtcGetProgramLog(struct program *p, char *out);
const char *nvrtcGetErrorString(int code);

#ifdef KT_FAKE_OLD /* than the newest GPUs */
static const int known[] = {80, 86};
#else
static const int known[] = {80, 86, 90, 120};
#endif

int nvrtcVersion(int *major, int *minor) {
    *major = 99; /* so that nothing in a cache is taken for its code */
    *minor = 9;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *n) {
    *n = (int)(sizeof known / sizeof *known);
    return 0;
}

int nvrtcGetSupportedArchs(int *sm) {
    memcpy(sm, known, sizeof known);
    return 0;
}

int nvrtcCreateProgram(struct program **out, const char *source, const char *name, int n,
                       const char *const *headers, const char *const *names) {
    (void)source, (void)n, (void)headers, (void)names;
    *out = calloc(1, sizeof **out);
    snprintf((*out)->name, sizeof(*out)->name, "%.60s", name);
    return 0;
}

int nvrtcDestroyProgram(struct program **p) {
    free(*p);
    *p = NULL;
    return 0;
}

int nvrtcCompileProgram(struct program *p, int n, const char *const *options) {
    size_t used = (size_t)snprintf(p->text, sizeof p->text, "%s", p->name);

    for (int i = 0; i < n && used < sizeof p->text; i++)
        used += (size_t)snprintf(p->text + used, sizeof p->text - used, " %s", options[i]);
    return 0;
}

int nvrtcGetCUBINSize(struct program *p, size_t *bytes) {
    *bytes = strlen(p->text) + 1;
    return 0;
}

int nvrtcGetCUBIN(struct program *p, char *out) {
    memcpy(out, p->text, strlen(p->text) + 1);
    return 0;
}

int nvrtcGetPTXSize(struct program *p, size_t *bytes) {
    *bytes = strlen(p->text) + 5;
    return 0;
}

int nvrtcGetPTX(struct program *p, char *out) {
    snprintf(out, strlen(p->text) + 5, "ptx %s", p->text);
    return 0;
}

int nvrtcGetProgramLogSize(struct program *p, size_t *bytes) {
    (void)p;
    *bytes = 1;
    return 0;
}

int nvrtcGetProgramLog(struct program *p, char *out) {
    (void)p;
    *out = 0;
    return 0;
}

const char *nvrtcGetErrorString(int code) {
    return code ? "an error" : "no error";
}
