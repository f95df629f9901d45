/* libnvidia-ml.so.1 by dlopen. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLOCK_SM = 1, SENSOR_CORE = 0 };

/* Every function gives 0 or an error's number. */
struct kt_nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus)(const char *bus, void **device);
    int (*clock)(void *device, int which, unsigned *mhz);
    int (*most_clock)(void *device, int which, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*throttle)(void *device, unsigned long long *reasons);
};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {{"nvmlInit_v2", offsetof(kt_nvml, init)},
                 {"nvmlShutdown", offsetof(kt_nvml, shutdown)},
                 {"nvmlDeviceGetHandleByPciBusId_v2", offsetof(kt_nvml, by_bus)},
                 {"nvmlDeviceGetClockInfo", offsetof(kt_nvml, clock)},
                 {"nvmlDeviceGetMaxClockInfo", offsetof(kt_nvml, most_clock)},
                 {"nvmlDeviceGetPowerUsage", offsetof(kt_nvml, power)},
                 {"nvmlDeviceGetTemperature", offsetof(kt_nvml, temperature)},
                 {"nvmlDeviceGetCurrentClocksThrottleReasons", offsetof(kt_nvml, throttle)}};

static bool look_up(kt_nvml *n, const char *name, char *why, size_t bytes) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(n->library, functions[i].name);
        if (!f) {
            snprintf(why, bytes, "%.150s: it has no function %s", name, functions[i].name);
            return false;
        }
        memcpy((char *)n + functions[i].offset, &f, sizeof f);
    }
    return true;
}

kt_nvml *kt_nvml_start(char *why, size_t why_bytes) {
    const char *wanted = getenv("KT_NVML");
    const char *name = wanted && *wanted ? wanted : "libnvidia-ml.so.1";
    kt_nvml *n = calloc(1, sizeof *n);
    int code;

    if (!n) {
        snprintf(why, why_bytes, "no memory for %.150s", name);
        return NULL;
    }
    n->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        snprintf(why, why_bytes, "%.150s is not installed", name);
    } else if (look_up(n, name, why, why_bytes)) {
        code = n->init();
        if (code == 0) return n;
        snprintf(why, why_bytes, "%.150s does not start: error %d", name, code);
    }
    if (n->library) dlclose(n->library);
    free(n);
    return NULL;
}

void kt_nvml_stop(kt_nvml *n) {
    if (!n) return;
    n->shutdown();
    dlclose(n->library);
    free(n);
}

static int told(int code, unsigned value) {
    return code == 0 ? (int)value : -1;
}

kt_gpu_state kt_nvml_look(const kt_nvml *n, const char *bus) {
    kt_gpu_state s = {-1, -1, -1, -1, -1};
    unsigned long long reasons = 0;
    void *device = NULL;
    unsigned v = 0;
    int code;

    if (n->by_bus(bus, &device) != 0) return s;
    code = n->clock(device, CLOCK_SM, &v);
    s.sm_mhz = told(code, v);
    code = n->most_clock(device, CLOCK_SM, &v);
    s.most_sm_mhz = told(code, v);
    code = n->power(device, &v);
    s.power_mw = told(code, v);
    code = n->temperature(device, SENSOR_CORE, &v);
    s.temperature_c = told(code, v);
    if (n->throttle(device, &reasons) == 0) s.throttle = (int64_t)reasons;
    return s;
}

const char *kt_gpu_throttle_text(int64_t throttle, char *out, size_t bytes) {
    static const struct {
        int bits;
        const char *name;
    } reasons[] = {{0x02, "set clocks"},     {0x04, "power limit"},    {0x08, "hardware slowdown"},
                   {0x10, "sync boost"},     {0x20 | 0x40, "thermal"}, {0x80, "power brake"},
                   {0x100, "display clocks"}};
    size_t used = 0;

    out[0] = 0;
    for (size_t i = 0; throttle > 0 && i < sizeof reasons / sizeof *reasons; i++)
        if (throttle & reasons[i].bits && used < bytes)
            used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "",
                                     reasons[i].name);
    return out;
}
