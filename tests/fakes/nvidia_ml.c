/* A stand-in for libnvidia-ml.so.1, driven by the file that FAKE_NVML_TOPOLOGY names.
 *
 * The file is read again in nvmlInitWithFlags whenever it has changed. One thing per line:
 *
 *   init CODE                   what nvmlInit fails with; 0 succeeds
 *   driver VERSION CUDA         such as 570.86.15 12080
 *   missing FUNCTION            this driver's library lacks it
 *   gpu UUID BUS TOTAL RESERVED USED MIG ERROR NAME   BUS in hexadecimal, sizes in bytes, MIG -1
 *                               where the GPU has no such mode, ERROR what each call on it returns
 *   mig UUID TOTAL RESERVED USED NAME                 an instance of the last gpu
 *   process PID USED            on the last gpu or mig; USED -1 when the driver does not say
 *   nvlink A B                  gpu lines A and B, counted from 0, reach each other over NVLink
 *   nop2p A B                   they cannot reach each other's memory at all
 *
 * It keeps NVML's contract where code can get it wrong: calls outside of init and shutdown fail,
 * the first memory struct counts the driver's reserve as used, lists need a second, larger call.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13,
    ARGUMENT_VERSION_MISMATCH = 25,
};
enum { MAX_GPUS = 32, MAX_DEVICES = 256, MAX_PROCESSES = 64, MAX_MISSING = 16, TEXT = 96 };

typedef struct { unsigned pid; long long used; } process_t;
typedef struct {
    char uuid[TEXT], name[TEXT];
    unsigned bus;
    long long total, reserved, used;
    int mig, error, parent, process_count;
    process_t processes[MAX_PROCESSES];
} device_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_info_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;

static device_t devices[MAX_DEVICES];
static int device_count, gpu_count, gpus[MAX_GPUS], sessions, init_error, cuda_version;
static char nvlink[MAX_GPUS][MAX_GPUS], nop2p[MAX_GPUS][MAX_GPUS];
static char missing[MAX_MISSING][TEXT], driver[TEXT];
static int missing_count;
static struct stat loaded;

static void read_line(const char *line) {
    device_t *last = device_count ? &devices[device_count - 1] : NULL, *new = &devices[device_count];
    int a, b;
    long long size;
    unsigned pid;
    if (sscanf(line, "init %d", &a) == 1) init_error = a;
    else if (sscanf(line, "driver %95s %d", driver, &cuda_version) == 2) return;
    else if (missing_count < MAX_MISSING && sscanf(line, "missing %95s", missing[missing_count]) == 1)
        missing_count++;
    else if (device_count < MAX_DEVICES && gpu_count < MAX_GPUS &&
             sscanf(line, "gpu %95s %x %lld %lld %lld %d %d %95[^\n]", new->uuid, &new->bus,
                    &new->total, &new->reserved, &new->used, &new->mig, &new->error,
                    new->name) == 8) {
        new->parent = -1;
        gpus[gpu_count++] = device_count++;
    } else if (gpu_count && device_count < MAX_DEVICES &&
               sscanf(line, "mig %95s %lld %lld %lld %95[^\n]", new->uuid, &new->total,
                      &new->reserved, &new->used, new->name) == 5) {
        new->parent = gpus[gpu_count - 1];
        new->mig = -1;
        new->error = devices[new->parent].error;
        new->bus = devices[new->parent].bus;
        device_count++;
    } else if (last && last->process_count < MAX_PROCESSES &&
               sscanf(line, "process %u %lld", &pid, &size) == 2) {
        last->processes[last->process_count++] = (process_t){pid, size};
    } else if (sscanf(line, "nvlink %d %d", &a, &b) == 2) nvlink[a][b] = nvlink[b][a] = 1;
    else if (sscanf(line, "nop2p %d %d", &a, &b) == 2) nop2p[a][b] = nop2p[b][a] = 1;
    else {
        fprintf(stderr, "fake libnvidia-ml: cannot read the line: %s", line);
        abort();
    }
}

static int load(void) {
    const char *path = getenv("FAKE_NVML_TOPOLOGY");
    struct stat now;
    char line[4 * TEXT];
    if (!path || stat(path, &now)) return DRIVER_NOT_LOADED;
    if (now.st_ino == loaded.st_ino && now.st_size == loaded.st_size &&
        !memcmp(&now.st_mtim, &loaded.st_mtim, sizeof now.st_mtim))
        return init_error;
    FILE *file = fopen(path, "r");
    if (!file) return DRIVER_NOT_LOADED;
    loaded = now;
    device_count = gpu_count = missing_count = init_error = 0;
    memset(devices, 0, sizeof devices);
    memset(nvlink, 0, sizeof nvlink);
    memset(nop2p, 0, sizeof nop2p);
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    return init_error;
}

static int lacks(const char *function) {
    for (int i = 0; i < missing_count; i++)
        if (!strcmp(missing[i], function)) return 1;
    return 0;
}

static int check(const char *function, const device_t *device) {
    if (!sessions) return UNINITIALIZED;
    if (lacks(function)) return FUNCTION_NOT_FOUND;
    return device ? device->error : OK;
}
#define CHECK(device)                                    \
    do {                                                 \
        int status = check(__func__, device);            \
        if (status) return status;                       \
    } while (0)

static int ordinal(const device_t *device) {
    for (int i = 0; i < gpu_count; i++)
        if (&devices[gpus[i]] == device) return i;
    return -1;
}

static int copy(const char *from, char *to, unsigned length) {
    if (strlen(from) >= length) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int status = load();
    if (!status) sessions++;
    return status;
}

int nvmlShutdown(void) {
    if (!sessions) return UNINITIALIZED;
    sessions--;
    return OK;
}

const char *nvmlErrorString(int status) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", status);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    CHECK(NULL);
    return copy(driver, version, length);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CHECK(NULL);
    *version = cuda_version;
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    CHECK(NULL);
    *count = gpu_count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **device) {
    CHECK(NULL);
    if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
    *device = &devices[gpus[index]];
    return (*device)->error;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **device) {
    CHECK(NULL);
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) {
            *device = &devices[i];
            return devices[i].error;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(device_t *device, char *uuid, unsigned length) {
    CHECK(device);
    return copy(device->uuid, uuid, length);
}

int nvmlDeviceGetName(device_t *device, char *name, unsigned length) {
    CHECK(device);
    return copy(device->name, name, length);
}

int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *pci) {
    CHECK(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = device->bus;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", 0, device->bus, 0);
    return OK;
}

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory) {
    CHECK(device);
    memory->total = device->total;
    memory->used = device->used + device->reserved;
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *memory) {
    CHECK(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->used = device->used;
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}

static int processes_of(const device_t *device, unsigned *count, process_info_t *found) {
    unsigned room = *count;
    *count = device->process_count;
    if (room < *count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        found[i] = (process_info_t){device->processes[i].pid, device->processes[i].used, ~0u, ~0u};
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(device_t *device, unsigned *count, process_info_t *to) {
    CHECK(device);
    return processes_of(device, count, to);
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *count, process_info_t *to) {
    CHECK(device);
    return processes_of(device, count, to);
}

int nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending) {
    CHECK(device);
    if (device->mig < 0) return NOT_SUPPORTED;
    *current = *pending = device->mig;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *count) {
    CHECK(device);
    *count = device->mig < 0 ? 0 : 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned index, device_t **instance) {
    CHECK(device);
    for (int i = 0; i < device_count; i++)
        if (devices[i].parent >= 0 && &devices[devices[i].parent] == device && !index--) {
            *instance = &devices[i];
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetP2PStatus(device_t *one, device_t *other, int index, int *status) {
    CHECK(one);
    CHECK(other);
    int a = ordinal(one), b = ordinal(other);
    if (a < 0 || b < 0 || a == b) return INVALID_ARGUMENT;
    *status = index == 2 ? (nvlink[a][b] ? OK : NOT_SUPPORTED + 2) : nop2p[a][b] ? 5 : OK;
    return OK;
}
