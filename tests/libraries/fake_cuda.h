/* How a test steers the pretended driver, and the driver's own functions.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FAKE_CUDA_H
#define KT_TESTS_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "dispatch/device/cuda_api.h"

/* A launch of the entry `name` of a module whose "code" is the text `options`; 0 or an error. */
typedef int fake_cuda_launched(const char *name, const char *options, int grid_x, int grid_y,
                               int threads, size_t shared_bytes, const void *parameters,
                               size_t parameter_bytes);

void fake_cuda_on_launch(fake_cuda_launched *f);
/* The function gives `code` from its call number `after` (0 = the next) on; NULL = none does. */
void fake_cuda_fail(const char *function, int after, int code);
const char *fake_cuda_calls(void); /* names of what was called, a blank after each */
void fake_cuda_forget(void);
int fake_cuda_live(void);       /* contexts, streams, events, modules, graphs, blocks of memory */
int fake_cuda_overlapped(void); /* launches since the last call that may begin early */

int cuInit(unsigned flags);
int cuDriverGetVersion(int *out);
int cuDeviceGetCount(int *out);
int cuDeviceGet(int *out, int ordinal);
int cuDeviceGetName(char *out, int bytes, int device);
int cuDeviceTotalMem_v2(size_t *out, int device);
int cuDeviceGetAttribute(int *out, int attribute, int device);
int cuDeviceGetPCIBusId(char *out, int bytes, int device);
int cuGetErrorName(int code, const char **out);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuMemGetInfo_v2(size_t *left, size_t *all);
int cuMemAlloc_v2(uint64_t *out, size_t bytes);
int cuMemFree_v2(uint64_t p);
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
int cuMemFreeHost(void *p);
int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *p);
int cuModuleLoadData(void **out, const void *code);
int cuModuleUnload(void *module);
int cuModuleGetFunction(void **out, void *module, const char *name);
int cuFuncGetAttribute(int *out, int attribute, void *function);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemsetD8Async(uint64_t p, unsigned char value, size_t bytes, void *stream);
int cuLaunchKernelEx(const kt_cu_launch *launch, void *function, void **parameters, void **extra);
int cuStreamCreate(void **out, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuStreamQuery(void *stream);
int cuLaunchHostFunc(void *stream, void (*f)(void *arg), void *arg);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags);
int cuGraphLaunch(void *executable, void *stream);
int cuGraphDestroy(void *graph);
int cuGraphExecDestroy(void *executable);
int cuEventCreate(void **out, unsigned flags);
int cuEventDestroy_v2(void *event);
int cuEventRecord(void *event, void *stream);
int cuEventSynchronize(void *event);
int cuEventQuery(void *event);
int cuEventElapsedTime(float *ms, void *from, void *to);

#endif
