/* What a member of device.h provides; for the files of this folder only. The front (device.c)
 * checks arguments, keeps the lists and the error that a lost device repeats; members do the work.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_DEVICE_CLASS_H
#define KT_DEVICE_DEVICE_CLASS_H

#include <pthread.h>

#include "dispatch/device/device.h"

struct kt_device_code {
    kt_device_code *next;
    const kt_cuda_kernel *kernel;
    kt_config config;
    bool is_loaded, is_behind; /* is_behind: `thread` compiles it */
    pthread_t thread;
    const kt_device *device;
    void *module; /* the member's */
    void *function[KT_CUDA_MAX_ENTRIES];
    int registers[KT_CUDA_MAX_ENTRIES], local_bytes[KT_CUDA_MAX_ENTRIES];
};

struct kt_device_event {
    kt_device_event *next;
    void *handle; /* the member's */
    bool is_recorded;
};

struct kt_device_graph {
    kt_device_graph *next;
    void *handle;    /* the member's */
    bool is_retired; /* nobody will replay it: device_gather.c frees it */
};

/* The direction of a copy. */
typedef enum kt_device_way { KT_WAY_UP, KT_WAY_DOWN, KT_WAY_ACROSS } kt_device_way;

typedef struct kt_device_class {
    const char *name;
    /* Sets d->facts and d->self. After a failure nothing is left. */
    kt_status (*open)(kt_device *d, const kt_device_options *options, kt_err *err);
    /* Waits for the work first. Events, graphs and code are dropped before by the calls below. */
    void (*finish)(kt_device *d);
    void (*close)(kt_device *d);
    kt_status (*alloc)(kt_device *d, size_t bytes, void **out, kt_err *err);
    void (*free)(kt_device *d, void *p);
    kt_status (*host_alloc)(kt_device *d, size_t bytes, void **out, kt_err *err);
    void (*host_free)(kt_device *d, void *p);
    kt_status (*pin)(kt_device *d, void *p, size_t bytes, kt_err *err);
    void (*unpin)(kt_device *d, void *p);
    kt_status (*memory)(kt_device *d, uint64_t *free_bytes, uint64_t *bytes, kt_err *err);
    kt_status (*copy)(kt_device *d, kt_stream s, kt_device_way way, void *to, const void *from,
                      size_t bytes, kt_err *err);
    kt_status (*copy_from)(kt_device *d, kt_stream s, void *to, kt_device *other, const void *from,
                           size_t bytes, kt_err *err);
    kt_status (*clear)(kt_device *d, kt_stream s, void *p, size_t bytes, kt_err *err);
    /* NULL: code is not compiled. Else one that is to be loaded later; from any thread. */
    void (*prepare)(const kt_device *d, const kt_code_request *request);
    kt_status (*load)(kt_device *d, kt_device_code *code, kt_err *err);
    void (*unload)(kt_device *d, kt_device_code *code);
    kt_status (*run)(kt_device *d, kt_stream s, const kt_device_launch *launch, kt_err *err);
    kt_status (*event_make)(kt_device *d, kt_device_event *e, kt_err *err);
    void (*event_drop)(kt_device *d, kt_device_event *e);
    kt_status (*record)(kt_device *d, kt_stream s, kt_device_event *e, kt_err *err);
    /* The event is `of` another device of this class, or of d. */
    kt_status (*wait)(kt_device *d, kt_stream s, kt_device *of, const kt_device_event *e,
                      kt_err *err);
    kt_status (*sync)(kt_device *d, const kt_device_event *e, kt_err *err);
    kt_status (*passed)(kt_device *d, const kt_device_event *e, bool *out, kt_err *err);
    kt_status (*elapsed)(kt_device *d, const kt_device_event *from, const kt_device_event *to,
                         double *ms, kt_err *err);
    kt_status (*capture_begin)(kt_device *d, kt_stream s, kt_err *err);
    /* Ends the capture in any case. */
    kt_status (*capture_end)(kt_device *d, kt_stream s, kt_device_graph *graph, kt_err *err);
    kt_status (*replay)(kt_device *d, kt_stream s, const kt_device_graph *graph, kt_err *err);
    void (*graph_drop)(kt_device *d, kt_device_graph *graph);
    kt_status (*call)(kt_device *d, kt_stream s, kt_device_function *f, void *arg, kt_err *err);
    kt_status (*poke)(kt_device *d, kt_stream s, bool *is_idle, kt_err *err);
    /* NULL: there is none. The driver's handle of a stream, with its context current for the
     * calling thread. */
    kt_status (*driver_stream)(kt_device *d, kt_stream s, void **out, kt_err *err);
} kt_device_class;

typedef struct kt_gather kt_gather; /* device_gather.c */

/* A command as the front was given it. Bytes that nothing was written to are 0: two that are the
 * same compare as memory. The parameters of a launch follow it, rounded up to its size. */
typedef struct kt_device_command {
    enum { KT_PUT_COPY = 1, KT_PUT_CLEAR, KT_PUT_LAUNCH, KT_PUT_CALL } kind;
    kt_device_way way;
    void *to; /* or a function's argument */
    const void *from;
    uint64_t bytes; /* of a copy or clear, or of shared memory */
    kt_device_function *function;
    const kt_device_code *code;
    int32_t entry, grid_x, grid_y, parameter_bytes;
} kt_device_command;

struct kt_device {
    const kt_device_class *class;
    kt_device_facts facts;
    const kt_log *log;
    void *self;   /* the member's */
    kt_err fault; /* not KT_OK: the device is lost, and why */
    kt_device_code *codes;
    int threads, behind; /* which may compile behind the caller, and which do */
    kt_device_event *events;
    kt_device_graph *graphs;
    bool is_capturing;
    kt_stream captured;
    kt_gather *gather; /* NULL = nothing was ever gathered */
};

extern const kt_device_class kt_device_class_cuda, kt_device_class_emulated;

/* From now on every call fails with this message, behind the device's name. */
kt_status kt_device_lose(kt_device *d, kt_status status, const char *why, kt_err *err);

/* Refuses calls that would wait for work which does not run, and those of a lost device. */
kt_status kt_device_check_idle(const kt_device *d, const char *what, kt_err *err);

/* Code that is compiled behind the caller is waited for and loaded; what failed is tried again. */
kt_status kt_device_code_ready(kt_device *d, const kt_device_code *code, kt_err *err);
void kt_device_codes_free(kt_device *d);

/* For a library that puts work of its own into the stream, behind all that was put before.
 * KT_E_UNSUPPORTED: an emulated device, whose streams no driver knows. */
kt_status kt_device_driver_stream(kt_device *d, kt_stream s, void **out, kt_err *err);

/* Keep a checked command of a stream that is gathered: true, with what became of it in *st. */
bool kt_gather_keep(kt_device *d, kt_stream s, const kt_device_command *c, const void *parameters,
                    kt_status *st, kt_err *err);
/* Put what is kept of the stream (KT_STREAM_COUNT = whichever it is). */
kt_status kt_gather_flush(kt_device *d, kt_stream s, kt_err *err);
void kt_gather_close(kt_device *d);

#endif
