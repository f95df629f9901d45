/* What computes beside the CPU: memory, code and queues of one device behind a table of calls.
 *
 * Members: `cuda` (a GPU, by the driver that is opened at run time) and `emulated` (the same
 * kernels on the CPU, by kernels/cuda/emulator.h, on threads of its own), so that whatever uses
 * devices runs, and is tested, where no GPU is. The CPU itself is no member: its programs run on
 * the thread pool.
 *
 * Work is put into streams. What is put into one stream is done in that order; streams do not wait
 * for each other unless told to (kt_device_wait). A call that puts work returns before the work is
 * done; memory that it names must stay until then. Errors of work appear at the next call that
 * waits for it, and a device that failed once fails all later calls with the same message.
 *
 * Several devices of one class may hand each other their work (kt_device_wait_for,
 * kt_device_copy_from); beside that they know nothing of each other.
 *
 * Addresses are of the device: the host must not follow them, but for those of kt_device_host_alloc,
 * which mean the same memory on both sides. One host thread at a time may use a device.
 *
 * An emulated device is stricter than a GPU where that finds faults. Copies and clears that do not
 * lie in one allocation are errors at once, as are parameters of a launch that name memory of the
 * host. Allocations end at an inaccessible page, and begin with 0xff. With `emulator.lazy` a stream
 * does its work only when something waits for it (or nothing more is put for 5 ms), so that what
 * was not waited for is not there. While a function of the host runs, every call that puts work or
 * asks for it waits for the function's end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEVICE_DEVICE_H
#define KT_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "kernels/cuda/cuda_kernel.h"

typedef struct kt_device kt_device;

/* Queues of a device. */
typedef enum kt_stream {
    KT_STREAM_MAIN = 0, /* the model's operations */
    KT_STREAM_UPLOAD,   /* weights that come while others are used */
    KT_STREAM_DOWNLOAD, /* what the CPU waits for */
    KT_STREAM_COUNT
} kt_stream;

typedef struct kt_device_facts {
    char name[128];    /* "NVIDIA GeForce RTX 5090", "emulated" */
    const char *class; /* "cuda", "emulated" */
    int ordinal;
    const kt_cuda_target *target; /* what code is made for */
    int multiprocessors;
    uint64_t memory_bytes, free_bytes; /* when it was opened */
    bool maps_pinned; /* launches may use memory of kt_device_pin by the host's address */
} kt_device_facts;

/* A kernel with one config, ready to start. Owned by the device. */
typedef struct kt_device_code kt_device_code;

typedef struct kt_device_launch {
    const kt_device_code *code;
    int entry;              /* index into the kernel's entries */
    int grid_x, grid_y;     /* blocks; 0 = nothing to do */
    size_t shared_bytes;    /* dynamic shared memory of a block */
    const void *parameters; /* the entry's struct; copied by the call */
    size_t parameter_bytes; /* at most KT_DEVICE_PARAMETERS */
} kt_device_launch;

enum { KT_DEVICE_PARAMETERS = 1024 };

/* A point in a stream; made once, recorded any number of times. Owned by the device. */
typedef struct kt_device_event kt_device_event;

typedef struct kt_device_options {
    const char *class; /* "cuda" or "emulated" */
    int ordinal;       /* which GPU, or KT_DEVICE_ALL (device_word.h); 0 for an emulated one */
    /* Of an emulated device. */
    const char *target;    /* whose limits it has: a name of kt_cuda_targets; NULL = "80" */
    uint64_t memory_bytes; /* 0 = 1 GiB */
    int threads;           /* that run blocks; 0 = 1 */
    kt_emulator_options emulator;
    int64_t fail_after; /* launches until the device is lost; 0 = never */
    const kt_log *log;  /* borrowed; NULL = silent */
} kt_device_options;

/* KT_E_NOT_FOUND: no such device, with the reason in one line. KT_E_UNSUPPORTED: a GPU that is too
 * old, or no NVRTC to make its code. KT_E_INVALID: an unknown class or target. */
kt_status kt_device_open(const kt_device_options *options, kt_device **out, kt_err *err);
void kt_device_close(kt_device *d); /* waits for its work; frees all that is its; accepts NULL */
const kt_device_facts *kt_device_about(const kt_device *d);

/* Memory of the device, aligned to 256 bytes; 0 bytes are NULL. KT_E_NOMEM with what was asked for
 * and what is free. */
kt_status kt_device_alloc(kt_device *d, size_t bytes, void **out, kt_err *err);
void kt_device_free(kt_device *d, void *p); /* accepts NULL; after the work that uses it */
/* Memory of the host that the device reads and writes where it lies, at the same address. */
kt_status kt_device_host_alloc(kt_device *d, size_t bytes, void **out, kt_err *err);
void kt_device_host_free(kt_device *d, void *p);
/* The same of memory that exists already, a mapping of weights for one: pinned, so that copies run
 * at the link's rate, and mapped where the device can do so (maps_pinned). It must stay until it is
 * unpinned, by the address that was given, or until the device is closed. KT_E_INVALID: a part of
 * it is known already. */
kt_status kt_device_pin(kt_device *d, void *p, size_t bytes, kt_err *err);
void kt_device_unpin(kt_device *d, void *p); /* after the work that uses it; accepts NULL */
/* What is free now, of all that there is; others may use the same GPU. Either may be NULL. */
kt_status kt_device_memory(kt_device *d, uint64_t *free_bytes, uint64_t *bytes, kt_err *err);

/* Copies between host (any memory; from pageable memory the call may wait) and device. */
kt_status kt_device_upload(kt_device *d, kt_stream s, void *to, const void *from, size_t bytes,
                           kt_err *err);
kt_status kt_device_download(kt_device *d, kt_stream s, void *to, const void *from, size_t bytes,
                             kt_err *err);
/* From one place of the device to another. */
kt_status kt_device_copy(kt_device *d, kt_stream s, void *to, const void *from, size_t bytes,
                         kt_err *err);
/* From a place of another device of the same class, in the order of a stream of d: what the other
 * does before it must be waited for (kt_device_wait_for). Not part of any graph. */
kt_status kt_device_copy_from(kt_device *d, kt_stream s, void *to, kt_device *other,
                              const void *from, size_t bytes, kt_err *err);
kt_status kt_device_clear(kt_device *d, kt_stream s, void *p, size_t bytes, kt_err *err);

/* Code of a kernel with a config: compiled, taken from the cache on disk, or (emulated) its entry.
 * Asked for twice it is the same. */
kt_status kt_device_code_of(kt_device *d, const kt_cuda_kernel *kernel, const kt_config *config,
                            const kt_device_code **out, kt_err *err);
/* Compile many kernels ahead, on up to `threads` threads of the host, so that kt_device_code_of
 * finds them in the cache on disk. What does not compile is told by that call. Nothing is done
 * where code need not be compiled (emulated), or cannot be kept. */
typedef struct kt_code_request {
    const kt_cuda_kernel *kernel; /* borrowed */
    kt_config config;
} kt_code_request;
void kt_device_prepare(kt_device *d, const kt_code_request *request, int n, int threads);
/* Between begin and end kt_device_code_of does not wait for the compiler: up to `threads` threads
 * compile what is asked for meanwhile, and what does not compile is told by the first launch of it
 * or by the end, which loads everything. Facts of the code are known from then on. Nothing changes
 * where code is not compiled (emulated). */
void kt_device_codes_begin(kt_device *d, int threads);
kt_status kt_device_codes_end(kt_device *d, kt_err *err);
kt_status kt_device_run(kt_device *d, kt_stream s, const kt_device_launch *launch, kt_err *err);
/* Bytes of local memory and registers of a thread of an entry, as the device says; 0 where it does
 * not (emulated). */
void kt_device_code_facts(const kt_device_code *code, int entry, int *registers, int *local_bytes);

kt_status kt_device_event_make(kt_device *d, kt_device_event **out, kt_err *err);
kt_status kt_device_record(kt_device *d, kt_stream s, kt_device_event *e, kt_err *err);
/* What is put into the stream from now on waits for the event. */
kt_status kt_device_wait(kt_device *d, kt_stream s, const kt_device_event *e, kt_err *err);
/* Likewise for an event of another device of the same class, which must not be closed before d has
 * done so. Refused while a graph is captured, and when either device is lost. */
kt_status kt_device_wait_for(kt_device *d, kt_stream s, kt_device *other, const kt_device_event *e,
                             kt_err *err);
/* The host waits: for an event, or (NULL) for all that the device has been given. */
kt_status kt_device_sync(kt_device *d, const kt_device_event *e, kt_err *err);
/* Whether the work before it is done, without waiting; true for one never recorded. */
kt_status kt_device_passed(kt_device *d, const kt_device_event *e, bool *out, kt_err *err);
/* Milliseconds between two recorded events that have passed, by the device's clock. */
kt_status kt_device_elapsed(kt_device *d, const kt_device_event *from, const kt_device_event *to,
                            double *ms, kt_err *err);

/* A function of the host in the order of a stream: called on a thread of the device's own when all
 * that was put before is done; what is put later waits for it. In a graph it is called at each
 * replay. It must not call the device, and must end without the help of the device and of the
 * thread that uses it: a driver may hold up any call of that thread until the function has ended,
 * the replay of the function's own graph for one. */
typedef void kt_device_function(void *arg);
kt_status kt_device_call(kt_device *d, kt_stream s, kt_device_function *f, void *arg, kt_err *err);

/* For a host that watches memory which a stream writes: is the device still there, and (out) is all
 * done that the stream was given? Waits for nothing, but perhaps for the end of a function of the
 * host that is being called. A lazy emulated stream does one command more, so that a host which
 * reads more than it was told of finds the old bytes. */
kt_status kt_device_poke(kt_device *d, kt_stream s, bool *is_idle, kt_err *err);

/* Work that is put many times: between begin and end nothing runs, but what is put into the stream
 * (and into streams that wait for an event recorded meanwhile, until the stream waits for them) is
 * kept, with copies of the launches' parameters. A replay puts all of it into the stream at once.
 * The memory that it names must still be there. Meanwhile kt_device_sync, kt_device_passed and
 * kt_device_elapsed are refused (KT_E_INVALID), and code must have been made before. Events of
 * inside mean nothing outside. */
typedef struct kt_device_graph kt_device_graph; /* owned by the device */
kt_status kt_device_capture_begin(kt_device *d, kt_stream s, kt_err *err);
/* Ends the capture also where it fails; *out is NULL then. */
kt_status kt_device_capture_end(kt_device *d, kt_device_graph **out, kt_err *err);
kt_status kt_device_replay(kt_device *d, kt_stream s, const kt_device_graph *graph, kt_err *err);
void kt_device_graph_free(kt_device *d, kt_device_graph *graph); /* waits; accepts NULL */

/* Graphs of what repeats, found by themselves. Between begin and end the copies, clears, launches
 * and functions that are put into the stream are kept, and go to the device as one piece when
 * something depends on them: an event of the stream, a wait of the host, memory that is freed, the
 * end. A piece that was put before, the same commands with the same parameters one by one, is
 * captured and replayed; one that differs in any of them never is, so that no graph can be stale.
 * What lies behind the addresses is read when the piece runs. The graphs used longest ago are
 * dropped where they are too many, which may wait for the device at the beginning of a gathering
 * and at no other time.
 *
 * eager: a piece is captured when it is first seen, not the second time, and an error where it
 * cannot be (KT_E_UNSUPPORTED): nothing of it was put then. For pieces that wait for the host,
 * which a full queue would keep from answering. */
kt_status kt_device_gather_begin(kt_device *d, kt_stream s, bool eager, kt_err *err);
kt_status kt_device_gather_end(kt_device *d, kt_err *err);

typedef struct kt_device_gathered {
    int64_t pieces, captured, replayed; /* put in all; made into graphs; put by a graph */
    int64_t kept;                       /* graphs that there are now */
} kt_device_gathered;
kt_device_gathered kt_device_gather_counts(const kt_device *d);

#endif
