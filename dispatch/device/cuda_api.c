/* libcuda.so.1 by dlopen. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/cuda_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST_DRIVER = 12000, N_TO_LOOK = 8 };

static const struct {
    const char *name;
    size_t offset;
} functions[] = {{"cuInit", offsetof(kt_cuda_api, init)},
                 {"cuDriverGetVersion", offsetof(kt_cuda_api, version)},
                 {"cuDeviceGetCount", offsetof(kt_cuda_api, count)},
                 {"cuDeviceGet", offsetof(kt_cuda_api, device)},
                 {"cuDeviceGetName", offsetof(kt_cuda_api, name)},
                 {"cuDeviceTotalMem_v2", offsetof(kt_cuda_api, total)},
                 {"cuDeviceGetAttribute", offsetof(kt_cuda_api, attribute)},
                 {"cuDeviceGetPCIBusId", offsetof(kt_cuda_api, bus)},
                 {"cuGetErrorName", offsetof(kt_cuda_api, error_name)},
                 {"cuDevicePrimaryCtxRetain", offsetof(kt_cuda_api, retain)},
                 {"cuDevicePrimaryCtxRelease_v2", offsetof(kt_cuda_api, release)},
                 {"cuCtxSetCurrent", offsetof(kt_cuda_api, set_current)},
                 {"cuCtxSynchronize", offsetof(kt_cuda_api, finish)},
                 {"cuMemGetInfo_v2", offsetof(kt_cuda_api, memory)},
                 {"cuMemAlloc_v2", offsetof(kt_cuda_api, alloc)},
                 {"cuMemFree_v2", offsetof(kt_cuda_api, free)},
                 {"cuMemHostAlloc", offsetof(kt_cuda_api, host_alloc)},
                 {"cuMemFreeHost", offsetof(kt_cuda_api, host_free)},
                 {"cuMemHostRegister_v2", offsetof(kt_cuda_api, pin)},
                 {"cuMemHostUnregister", offsetof(kt_cuda_api, unpin)},
                 {"cuMemcpyHtoDAsync_v2", offsetof(kt_cuda_api, upload)},
                 {"cuMemcpyDtoHAsync_v2", offsetof(kt_cuda_api, download)},
                 {"cuMemcpyDtoDAsync_v2", offsetof(kt_cuda_api, copy)},
                 {"cuMemcpyPeerAsync", offsetof(kt_cuda_api, copy_peer)},
                 {"cuMemsetD8Async", offsetof(kt_cuda_api, fill)},
                 {"cuStreamCreate", offsetof(kt_cuda_api, stream_create)},
                 {"cuStreamDestroy_v2", offsetof(kt_cuda_api, stream_destroy)},
                 {"cuStreamWaitEvent", offsetof(kt_cuda_api, stream_wait)},
                 {"cuStreamQuery", offsetof(kt_cuda_api, stream_query)},
                 {"cuLaunchHostFunc", offsetof(kt_cuda_api, stream_call)},
                 {"cuStreamBeginCapture_v2", offsetof(kt_cuda_api, capture_begin)},
                 {"cuStreamEndCapture", offsetof(kt_cuda_api, capture_end)},
                 {"cuGraphInstantiateWithFlags", offsetof(kt_cuda_api, graph_make)},
                 {"cuGraphLaunch", offsetof(kt_cuda_api, graph_launch)},
                 {"cuGraphDestroy", offsetof(kt_cuda_api, graph_destroy)},
                 {"cuGraphExecDestroy", offsetof(kt_cuda_api, executable_destroy)},
                 {"cuModuleLoadData", offsetof(kt_cuda_api, module_load)},
                 {"cuModuleUnload", offsetof(kt_cuda_api, module_unload)},
                 {"cuModuleGetFunction", offsetof(kt_cuda_api, module_function)},
                 {"cuFuncGetAttribute", offsetof(kt_cuda_api, function_attribute)},
                 {"cuFuncSetAttribute", offsetof(kt_cuda_api, set_function_attribute)},
                 {"cuLaunchKernelEx", offsetof(kt_cuda_api, launch)},
                 {"cuEventCreate", offsetof(kt_cuda_api, event_create)},
                 {"cuEventDestroy_v2", offsetof(kt_cuda_api, event_destroy)},
                 {"cuEventRecord", offsetof(kt_cuda_api, event_record)},
                 {"cuEventSynchronize", offsetof(kt_cuda_api, event_sync)},
                 {"cuEventQuery", offsetof(kt_cuda_api, event_query)},
                 {"cuEventElapsedTime", offsetof(kt_cuda_api, event_elapsed)}};

static bool look_up(kt_cuda_api *api, size_t from, size_t to, const char *name, char *why,
                    size_t bytes) {
    for (size_t i = from; i < to; i++) {
        void *f = dlsym(api->library, functions[i].name);
        if (!f) {
            snprintf(why, bytes, "%.150s: it has no function %s", name, functions[i].name);
            return false;
        }
        memcpy((char *)api + functions[i].offset, &f, sizeof f);
    }
    return true;
}

static bool open_driver(kt_cuda_api *api, const char **name, char *why, size_t bytes) {
    const char *wanted = getenv("KT_CUDA_DRIVER");

    *name = wanted && *wanted ? wanted : "libcuda.so.1";
    api->library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    if (api->library) return true;
    if (wanted && *wanted)
        snprintf(why, bytes, "KT_CUDA_DRIVER: %.200s", dlerror());
    else
        snprintf(why, bytes, "no CUDA driver: %s is not installed", *name);
    return false;
}

static const struct {
    int code;
    const char *why;
} reasons[] = {
    {KT_CU_STUB, "the CUDA driver found is a toolkit's stub, which runs nothing: install the GPU's "
                 "driver, or take the stub off the path of libraries"},
    {KT_CU_NO_DEVICE, "the CUDA driver sees no GPU"},
    {KT_CU_DRIVER_MISMATCH, "the CUDA driver's library and its kernel module are of two versions: "
                            "reload the module or restart the machine"},
    {KT_CU_NOT_PERMITTED,
     "the CUDA driver refuses this user: look at the permissions of /dev/nvidia*"}};

static bool start_driver(const kt_cuda_api *api, int *version, char *why, size_t bytes) {
    const int code = api->init(0);

    if (code != 0) {
        snprintf(why, bytes, "the CUDA driver does not start: error %d", code);
        for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
            if (reasons[i].code == code) snprintf(why, bytes, "%s", reasons[i].why);
        return false;
    }
    if (api->version(version) == 0 && *version >= OLDEST_DRIVER) return true;
    snprintf(why, bytes, "the CUDA driver is of CUDA %d.%d, expected 12.0 or newer",
             *version / 1000, *version % 1000 / 10);
    return false;
}

bool kt_cuda_api_start(kt_cuda_api *api, bool all, int *version, char *why, size_t why_bytes) {
    const size_t n = sizeof functions / sizeof *functions;
    const char *name;
    bool ok;

    *api = (kt_cuda_api){0};
    *version = 0;
    /* It is started before the rest is looked up: a driver without a GPU says so first. */
    ok = open_driver(api, &name, why, why_bytes) &&
         look_up(api, 0, N_TO_LOOK, name, why, why_bytes) &&
         start_driver(api, version, why, why_bytes);
    if (ok && (!all || look_up(api, N_TO_LOOK, n, name, why, why_bytes))) return true;
    if (api->library && !ok) dlclose(api->library);
    *api = (kt_cuda_api){0};
    return false;
}
