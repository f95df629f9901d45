/* The CUDA driver's C interface as a table of functions, opened at run time; for this folder only.
 * Every function gives 0 or an error's number; handles are pointers, addresses are 64-bit numbers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_CUDA_API_H
#define KT_DEVICE_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers of cuda.h, which have been the same since they came. */
enum {
    KT_CU_OUT_OF_MEMORY = 2,
    KT_CU_STUB = 34,
    KT_CU_NO_DEVICE = 100,
    KT_CU_NOT_READY = 600,
    KT_CU_PINNED_ALREADY = 712,
    KT_CU_NOT_PERMITTED = 800,
    KT_CU_DRIVER_MISMATCH = 803,
    KT_CU_FIRST_CAPTURE = 900, /* .. 909: rules of captures */
    KT_CU_LAST_CAPTURE = 909,
    KT_CU_HOST_PORTABLE = 1,
    KT_CU_HOST_MAPPED = 2,
    KT_CU_STREAM_NON_BLOCKING = 1,
    KT_CU_CAPTURE_RELAXED = 2,
    KT_CU_FUNCTION_SHARED = 1,
    KT_CU_FUNCTION_LOCAL = 3,
    KT_CU_FUNCTION_REGISTERS = 4,
    KT_CU_FUNCTION_MOST_SHARED = 8,
    KT_CU_MULTIPROCESSORS = 16,
    KT_CU_MAJOR = 75,
    KT_CU_MINOR = 76,
    KT_CU_MAPS_PINNED = 91, /* "can use host pointer for registered memory" */
    KT_CU_SHARED_OPTIN = 97,
    KT_CU_LAUNCH_OVERLAPS = 6 /* programmatic stream serialization */
};

/* A launch as cuLaunchKernelEx takes it, and one of its attributes. */
typedef struct kt_cu_launch_attribute {
    int id;
    char padding[4];
    union {
        int number;
        char bytes[64];
    } value;
} kt_cu_launch_attribute;

typedef struct kt_cu_launch {
    unsigned grid_x, grid_y, grid_z, x, y, z, shared_bytes;
    void *stream;
    const kt_cu_launch_attribute *attributes;
    unsigned n_attributes;
} kt_cu_launch;

typedef struct kt_cuda_api {
    void *library;
    int (*init)(unsigned flags);
    int (*version)(int *out);
    int (*count)(int *out);
    int (*device)(int *out, int ordinal);
    int (*name)(char *out, int bytes, int device);
    int (*total)(size_t *out, int device);
    int (*attribute)(int *out, int attribute, int device);
    int (*bus)(char *out, int bytes, int device);
    /* From here on only those who use a GPU need them. */
    int (*error_name)(int code, const char **out);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*set_current)(void *context);
    int (*finish)(void);
    int (*memory)(size_t *free_bytes, size_t *bytes);
    int (*alloc)(uint64_t *out, size_t bytes);
    int (*free)(uint64_t p);
    int (*host_alloc)(void **out, size_t bytes, unsigned flags);
    int (*host_free)(void *p);
    int (*pin)(void *p, size_t bytes, unsigned flags);
    int (*unpin)(void *p);
    int (*upload)(uint64_t to, const void *from, size_t bytes, void *stream);
    int (*download)(void *to, uint64_t from, size_t bytes, void *stream);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes, void *stream);
    int (*copy_peer)(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes,
                     void *stream);
    int (*fill)(uint64_t p, unsigned char value, size_t bytes, void *stream);
    int (*stream_create)(void **out, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*stream_query)(void *stream);
    int (*stream_call)(void *stream, void (*function)(void *arg), void *arg);
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_make)(void **out, void *graph, unsigned long long flags);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_destroy)(void *graph);
    int (*executable_destroy)(void *executable);
    int (*module_load)(void **out, const void *code);
    int (*module_unload)(void *module);
    int (*module_function)(void **out, void *module, const char *name);
    int (*function_attribute)(int *out, int attribute, void *function);
    int (*set_function_attribute)(void *function, int attribute, int value);
    int (*launch)(const kt_cu_launch *launch, void *function, void **parameters, void **extra);
    int (*event_create)(void **out, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_sync)(void *event);
    int (*event_query)(void *event);
    int (*event_elapsed)(float *ms, void *from, void *to);
} kt_cuda_api;

/* Opens and starts the driver, KT_CUDA_DRIVER or libcuda.so.1, with the functions to look at GPUs
 * or with `all`. false: no usable driver, and one line that says why; nothing is left open. The
 * library of a driver that was started stays loaded: it has threads of its own. */
bool kt_cuda_api_start(kt_cuda_api *api, bool all, int *version, char *why, size_t why_bytes);

#endif
