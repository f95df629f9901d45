/* A management library that knows one GPU. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device);
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz);
int nvmlDeviceGetMaxClockInfo(void *device, int which, unsigned *mhz);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);

static int there;

int nvmlInit_v2(void) {
    return 0;
}
int nvmlShutdown(void) {
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    *device = &there;
    return strcmp(bus, "0000:41:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz) {
    *mhz = 1410;
    return device != &there || which != 1;
}
int nvmlDeviceGetMaxClockInfo(void *device, int which, unsigned *mhz) {
    *mhz = 1980;
    return device != &there || which != 1;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    (void)device, (void)milliwatts;
    return 3; /* not supported */
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    *celsius = 63;
    return device != &there || sensor != 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = 0x1 | 0x4 | 0x40;
    return device != &there;
}
