/* CUDA's libraries for a machine without a GPU: what torch, Triton and vLLM call before and after a kernel is real.

   Memory of the card is memory of the host, counted against a card of FAKE_CUDA_GIB (80) over all processes that share
   the file FAKE_CUDA_CARD; copies between host and card happen. Kernels, products and collectives do nothing: memory
   holds zeros, or what was copied into it. So allocation, streams, events, capture and replay of graphs, sleep, IPC of
   addresses and every check of the libraries run, and no arithmetic does.

   Two faults of a card are kept, because a run met them (docs/scaling.md):
   - a graph that was captured with cuBLAS's workspace and is replayed after that memory went back to the card ends in
     `illegal memory access`, which stays, as on a card;
   - cuDNN computes nothing: whoever asks it for attention gets its error.

   libraries.py compiles this with an empty function for every other name that the installed binaries ask for. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { OK = 0, OUT_OF_MEMORY = 2, INVALID = 1, NOT_PERMITTED_IN_CAPTURE = 900, ILLEGAL_ADDRESS = 700, CUDNN_NOT_SUPPORTED = 3000 };
#define NAME "fake H100 (no GPU)"
#define RUNTIME 13000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int dead; /* An illegal access ends a context: every later call says so. */
static int last_error;

static int failed(int error) {
    last_error = error;
    return error;
}

/* The card: bytes in use by process */

typedef struct {
    int pid;
    size_t used;
} User;
#define USERS 128
static User own_table[USERS];
static User *users = own_table;
static int opened_by;

static size_t card_bytes(void) {
    const char *gib = getenv("FAKE_CUDA_GIB");
    return (size_t)((gib ? atof(gib) : 80.0) * (1 << 30));
}

static void open_card(void) {
    if (opened_by == getpid()) return;
    opened_by = getpid();
    const char *path = getenv("FAKE_CUDA_CARD");
    if (!path) return;
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(own_table))) abort();
    users = mmap(NULL, sizeof(own_table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (users == MAP_FAILED) abort();
}

static size_t used_bytes(void) {
    open_card();
    size_t sum = 0;
    for (int i = 0; i < USERS; i++) {
        int pid = users[i].pid;
        if (pid && pid != getpid() && kill(pid, 0) && errno == ESRCH) users[i] = (User){0, 0};
        sum += users[i].used;
    }
    return sum;
}

static int take(ptrdiff_t bytes) {
    open_card();
    if (bytes > 0 && used_bytes() + (size_t)bytes > card_bytes()) return failed(OUT_OF_MEMORY);
    for (int i = 0; i < USERS; i++) {
        if (users[i].pid == getpid() || !users[i].pid) {
            users[i].pid = getpid();
            users[i].used += bytes;
            return OK;
        }
    }
    abort();
}

/* Memory */

typedef struct {
    char *at;
    size_t size;
    int kind; /* 1: host, pinned; 2: the card's */
    u64 serial; /* An address that was given back is another area's, also where it comes again. */
} Area;
static u64 serials;
static Area *areas;
static size_t num_areas, room_areas;

static Area *area_of(const void *address) {
    for (size_t i = 0; i < num_areas; i++)
        if ((char *)address >= areas[i].at && (char *)address < areas[i].at + areas[i].size) return &areas[i];
    return NULL;
}

static void add_area(void *at, size_t size, int kind) {
    if (num_areas == room_areas) areas = realloc(areas, (room_areas = room_areas * 2 + 64) * sizeof(Area));
    areas[num_areas++] = (Area){at, size, kind, ++serials};
}

static void drop_area(void *at) {
    Area *area = area_of(at);
    if (area) *area = areas[--num_areas];
}

static void *pages(size_t size, int access) {
    return mmap(NULL, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static int allocate(void **out, size_t size, int kind) {
    if (dead) return ILLEGAL_ADDRESS;
    *out = NULL;
    if (!size) return OK;
    pthread_mutex_lock(&lock);
    int error = kind == 2 ? take(size) : OK;
    if (!error) add_area(*out = pages(size, PROT_READ | PROT_WRITE), size, kind);
    pthread_mutex_unlock(&lock);
    return error;
}

static int release(void *at) {
    pthread_mutex_lock(&lock);
    Area *area = area_of(at);
    if (area) {
        Area gone = *area;
        *area = areas[--num_areas];
        munmap(gone.at, gone.size);
        if (gone.kind == 2) take(-(ptrdiff_t)gone.size);
    }
    pthread_mutex_unlock(&lock);
    return dead ? ILLEGAL_ADDRESS : OK;
}

int cudaMalloc(void **out, size_t size) { return allocate(out, size, 2); }
int cudaMallocAsync(void **out, size_t size, void *stream) { return allocate(out, size, 2); }
int cudaFree(void *at) { return release(at); }
int cudaFreeAsync(void *at, void *stream) { return release(at); }
int cudaHostAlloc(void **out, size_t size, unsigned flags) { return allocate(out, size, 1); }
int cudaMallocHost(void **out, size_t size) { return allocate(out, size, 1); }
int cudaFreeHost(void *at) { return release(at); }
int cudaHostGetDevicePointer(void **out, void *host, unsigned flags) { return *out = host, OK; }
int cudaHostRegister(void *at, size_t size, unsigned flags) {
    pthread_mutex_lock(&lock);
    add_area(at, size, 1);
    pthread_mutex_unlock(&lock);
    return OK;
}
int cudaHostUnregister(void *at) {
    pthread_mutex_lock(&lock);
    drop_area(at);
    pthread_mutex_unlock(&lock);
    return OK;
}
int cudaMemGetInfo(size_t *available, size_t *total) {
    if (dead) return ILLEGAL_ADDRESS;
    pthread_mutex_lock(&lock);
    *total = card_bytes();
    *available = *total - used_bytes();
    pthread_mutex_unlock(&lock);
    return OK;
}
int cudaGetSymbolAddress(void **out, const void *symbol) {
    static char zeros[1 << 16];
    return *out = zeros, OK;
}
typedef struct {
    int type, device;
    void *on_card, *on_host;
} PointerAttributes;
int cudaPointerGetAttributes(PointerAttributes *out, const void *at) {
    pthread_mutex_lock(&lock);
    Area *area = area_of(at);
    int kind = area ? area->kind : 0;
    pthread_mutex_unlock(&lock);
    *out = (PointerAttributes){kind, kind == 2 ? 0 : -1, kind ? (void *)at : NULL, kind == 2 ? NULL : (void *)at};
    return OK;
}
int cuPointerGetAttribute(void *out, int attribute, void *at) {
    if (attribute == 3 || attribute == 4) *(void **)out = at; /* device and host pointer */
    else *(int *)out = attribute == 2 ? 2 : 0;                /* memory of a device; device 0 */
    return OK;
}

/* Virtual memory: what vLLM's allocator for sleep and torch's expandable segments use. */

int cuMemGetAllocationGranularity(size_t *out, const void *properties, int option) { return *out = 2 << 20, OK; }
int cuMemAddressReserve(u64 *out, size_t size, size_t align, u64 at, u64 flags) {
    return *out = (u64)pages(size, PROT_NONE), OK;
}
int cuMemAddressFree(u64 at, size_t size) { return munmap((void *)at, size), OK; }
int cuMemCreate(u64 *handle, size_t size, const void *properties, u64 flags) {
    pthread_mutex_lock(&lock);
    int error = take(size);
    pthread_mutex_unlock(&lock);
    *handle = size;
    return error;
}
int cuMemRelease(u64 handle) {
    pthread_mutex_lock(&lock);
    take(-(ptrdiff_t)handle);
    pthread_mutex_unlock(&lock);
    return OK;
}
int cuMemMap(u64 at, size_t size, size_t offset, u64 handle, u64 flags) {
    mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    pthread_mutex_lock(&lock);
    add_area((void *)at, size, 2);
    pthread_mutex_unlock(&lock);
    return OK;
}
int cuMemUnmap(u64 at, size_t size) { /* Whoever touches it now ends. */
    mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    pthread_mutex_lock(&lock);
    drop_area((void *)at);
    pthread_mutex_unlock(&lock);
    return OK;
}

/* Streams, events and graphs */

typedef struct {
    int instances;
    u64 id;
    void **workspaces; /* That products of the capture had, without repetition. */
    u64 serials[64];
    size_t num_workspaces;
} Graph;
typedef struct {
    int priority;
    Graph *captured; /* NULL: nothing is captured. */
} Stream;
typedef struct {
    struct timespec at;
} Event;
static Stream default_stream;

static Stream *stream_of(void *stream) { return (u64)stream <= 2 ? &default_stream : stream; }
int cudaStreamCreateWithPriority(Stream **out, unsigned flags, int priority) {
    *out = calloc(1, sizeof(Stream));
    (*out)->priority = priority;
    return OK;
}
int cudaStreamCreate(Stream **out) { return cudaStreamCreateWithPriority(out, 0, 0); }
int cudaStreamCreateWithFlags(Stream **out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
int cudaStreamGetPriority(void *stream, int *out) { return *out = stream_of(stream)->priority, OK; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, OK; }
int cudaStreamSynchronize(void *stream) { return dead ? ILLEGAL_ADDRESS : OK; }
int cudaStreamQuery(void *stream) { return dead ? ILLEGAL_ADDRESS : OK; }
int cudaDeviceSynchronize(void) { return dead ? ILLEGAL_ADDRESS : OK; }
int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data, unsigned flags) {
    return function(stream, OK, data), OK;
}
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) { return function(data), OK; }

int cudaEventCreateWithFlags(Event **out, unsigned flags) { return *out = calloc(1, sizeof(Event)), OK; }
int cudaEventCreate(Event **out) { return cudaEventCreateWithFlags(out, 0); }
int cudaEventRecord(Event *event, void *stream) {
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    return dead ? ILLEGAL_ADDRESS : OK;
}
int cudaEventRecordWithFlags(Event *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }
int cudaEventQuery(Event *event) { return dead ? ILLEGAL_ADDRESS : OK; }
int cudaEventSynchronize(Event *event) { return dead ? ILLEGAL_ADDRESS : OK; }
int cudaEventDestroy(Event *event) { return free(event), OK; }
int cudaEventElapsedTime(float *ms, Event *from, Event *to) {
    *ms = (to->at.tv_sec - from->at.tv_sec) * 1e3f + (to->at.tv_nsec - from->at.tv_nsec) * 1e-6f;
    return OK;
}

static u64 captures;
int cudaStreamBeginCapture(void *stream, int mode) {
    Stream *s = stream_of(stream);
    if (s->captured) return failed(NOT_PERMITTED_IN_CAPTURE);
    s->captured = calloc(1, sizeof(Graph));
    s->captured->id = ++captures;
    return OK;
}
int cudaStreamEndCapture(void *stream, Graph **out) {
    Stream *s = stream_of(stream);
    *out = s->captured;
    s->captured = NULL;
    return *out ? OK : failed(NOT_PERMITTED_IN_CAPTURE);
}
int cudaStreamIsCapturing(void *stream, int *out) { return *out = stream_of(stream)->captured ? 1 : 0, OK; }
int cudaStreamGetCaptureInfo(void *stream, int *status, u64 *id, Graph **graph, void **dependencies, void **edges, size_t *number) {
    Graph *captured = stream_of(stream)->captured;
    *status = captured ? 1 : 0;
    if (id) *id = captured ? captured->id : 0;
    if (graph) *graph = captured;
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (number) *number = 0;
    return OK;
}
int cudaGraphGetNodes(Graph *graph, void **nodes, size_t *number) { return *number = 1, OK; }
int cudaGraphInstantiate(Graph **out, Graph *graph, u64 flags) { return *out = graph, graph->instances++, OK; }
int cudaGraphInstantiateWithFlags(Graph **out, Graph *graph, u64 flags) { return cudaGraphInstantiate(out, graph, flags); }
int cudaGraphDestroy(Graph *graph) { return OK; } /* Its instance is the same object; both are small. */
int cudaGraphExecDestroy(Graph *graph) { return OK; }
int cudaGraphLaunch(Graph *graph, void *stream) {
    if (dead) return ILLEGAL_ADDRESS;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < graph->num_workspaces; i++)
        if (!area_of(graph->workspaces[i]) || area_of(graph->workspaces[i])->serial != graph->serials[i]) dead = 1;
    pthread_mutex_unlock(&lock);
    return dead ? failed(ILLEGAL_ADDRESS) : OK;
}

/* Copies; what is captured is not done. */

static int copy(void *to, const void *from, size_t size, void *stream) {
    if (dead) return ILLEGAL_ADDRESS;
    if (size && !stream_of(stream)->captured) memmove(to, from, size);
    return OK;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return copy(to, from, size, NULL); }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) { return copy(to, from, size, stream); }
int cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, void *stream) {
    return copy(to, from, size, stream);
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, void *stream) {
    for (size_t i = 0; i < height; i++) copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, stream);
    return dead ? ILLEGAL_ADDRESS : OK;
}
int cudaMemset(void *at, int value, size_t size) { return dead ? ILLEGAL_ADDRESS : (memset(at, value, size), OK); }
int cudaMemsetAsync(void *at, int value, size_t size, void *stream) {
    return stream_of(stream)->captured ? OK : cudaMemset(at, value, size);
}

/* Devices and errors */

static int device_count(void) {
    const char *count = getenv("FAKE_CUDA_DEVICES");
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible && (!*visible || *visible == '-')) return 0;
    return count ? atoi(count) : 1;
}
static _Thread_local int device;
int cudaGetDeviceCount(int *out) { return (*out = device_count()) ? OK : failed(100); }
int cudaGetDevice(int *out) { return *out = device, OK; }
int cudaSetDevice(int index) { return index < device_count() ? (device = index, OK) : failed(101); }
int cudaDriverGetVersion(int *out) { return *out = RUNTIME, OK; }
int cudaRuntimeGetVersion(int *out) { return *out = RUNTIME, OK; }
int cudaGetLastError(void) {
    int error = dead ? ILLEGAL_ADDRESS : last_error;
    last_error = OK;
    return error;
}
int cudaPeekAtLastError(void) { return dead ? ILLEGAL_ADDRESS : last_error; }
const char *cudaGetErrorName(int error) { return error == ILLEGAL_ADDRESS ? "cudaErrorIllegalAddress" : "cudaError"; }
const char *cudaGetErrorString(int error) {
    switch (error) {
    case OUT_OF_MEMORY: return "out of memory";
    case 100: return "no CUDA-capable device is detected";
    case ILLEGAL_ADDRESS: return "an illegal memory access was encountered";
    }
    return error ? "an error of the fake CUDA" : "no error";
}
int cudaDeviceCanAccessPeer(int *out, int one, int other) { return *out = 1, OK; }
int cudaDeviceGetPCIBusId(char *out, int length, int index) { return snprintf(out, length, "0000:%02x:00.0", index + 1), OK; }

/* By the numbers of cudaDeviceAttr and CUdevice_attribute, which agree. */
static int attribute(int number) {
    switch (number) {
    case 1: case 2: case 3: return 1024;    /* threads of a block, and along its axes */
    case 4: return 64;
    case 5: return 2147483647;              /* blocks of a grid */
    case 6: case 7: return 65535;
    case 8: return 49152;                   /* shared memory of a block */
    case 9: return 65536;
    case 10: return 32;                     /* warp */
    case 12: case 82: return 65536;         /* registers */
    case 13: return 1980000;                /* kHz */
    case 16: return 132;                    /* multiprocessors */
    case 36: return 2619000;
    case 37: return 5120;
    case 38: return 1 << 20;                /* second-level cache: Inductor empties it before it times a kernel */
    case 39: return 2048;                   /* threads of a multiprocessor */
    case 75: return 9;                      /* compute capability */
    case 76: return 0;
    case 81: return 233472;
    case 97: return 232448;
    case 106: return 32;
    case 111: return 1024;
    case 41: case 83: case 95: case 102: case 120: return 1;
    }
    return 0;
}
int cudaDeviceGetAttribute(int *out, int number, int index) { return *out = attribute(number), OK; }
int cuDeviceGetAttribute(int *out, int number, int index) { return *out = attribute(number), OK; }

typedef struct { /* The head of cudaDeviceProp of CUDA 13. */
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t total, shared;
    int registers, warp;
    size_t pitch;
    int threads, block[3], grid[3];
    size_t constant;
    int major, minor;
    size_t alignment, pitch_alignment;
    int multiprocessors, integrated, maps_host;
} Properties;
#define SURFACE_ALIGNMENT 552 /* Where the second part starts; textures are between them. */
typedef struct {
    size_t surface_alignment;
    int concurrent, ecc, bus, device, domain, tcc, engines, unified, bus_width, cache, persisting, threads, priorities,
        global_cache, local_cache;
    size_t shared_of_multiprocessor;
    int registers_of_multiprocessor, managed, multi, group, atomics, pageable, concurrent_managed, preemption, registered,
        cooperative;
    size_t shared_optin;
} MoreProperties;
int cudaGetDeviceProperties(char *out, int index) {
    Properties *p = (Properties *)out;
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), NAME);
    p->uuid[0] = index + 1;
    p->total = card_bytes(), p->shared = attribute(8), p->registers = attribute(12), p->warp = 32;
    p->threads = 1024, p->block[0] = p->block[1] = 1024, p->block[2] = 64;
    p->grid[0] = attribute(5), p->grid[1] = p->grid[2] = attribute(6);
    p->constant = 65536, p->major = 9, p->minor = 0, p->multiprocessors = attribute(16);
    p->pitch = 2147483647, p->alignment = 512, p->pitch_alignment = 32, p->maps_host = 1;
    MoreProperties *more = (MoreProperties *)(out + SURFACE_ALIGNMENT);
    memset(more, 0, sizeof(*more));
    more->concurrent = more->ecc = more->unified = more->priorities = more->global_cache = more->local_cache = 1;
    more->bus = index + 1, more->engines = 3, more->bus_width = attribute(37), more->cache = attribute(38);
    more->threads = attribute(39), more->shared_of_multiprocessor = attribute(81);
    more->registers_of_multiprocessor = attribute(82), more->managed = more->preemption = more->cooperative = 1;
    more->shared_optin = attribute(97);
    return OK;
}

/* Kernels */

typedef struct {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache_mode, dynamic_shared, carveout;
} FunctionAttributes;
int cudaFuncGetAttributes(FunctionAttributes *out, const void *function) {
    memset(out, 0, sizeof(*out));
    out->threads = 1024, out->registers = 32, out->ptx = out->binary = 90, out->dynamic_shared = attribute(97);
    return OK;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *f, int threads, size_t shared) { return *out = 2, OK; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *f, int threads, size_t shared, unsigned flags) {
    return *out = 2, OK;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void *f, int threads, size_t shared) { return *out = 2, OK; }
int cuOccupancyMaxActiveClusters(int *out, void *f, void *config) { return *out = 64, OK; }
static char something[4096];
void **__cudaRegisterFatBinary(void *binary) { return (void **)something; }
static int launched(void) { return dead ? ILLEGAL_ADDRESS : OK; }
int cudaLaunchKernel(void) { return launched(); }
int cudaLaunchKernelExC(void) { return launched(); }
int cudaLaunchCooperativeKernel(void) { return launched(); }
int __cudaLaunchKernel(void) { return launched(); }
int cuLaunchKernel(void) { return launched(); }
int cuLaunchKernelEx(void) { return launched(); }

/* The driver, for Triton and for torch's look-ups */

int cuInit(unsigned flags) { return device_count() ? OK : 100; }
int cuDriverGetVersion(int *out) { return *out = RUNTIME, OK; }
int cuDeviceGet(int *out, int index) { return *out = index, OK; }
int cuDeviceGetCount(int *out) { return *out = device_count(), OK; }
int cuDeviceGetName(char *out, int length, int index) { return snprintf(out, length, NAME), OK; }
int cuDeviceGetUuid_v2(char *out, int index) { return memset(out, 0, 16), out[0] = index + 1, OK; }
int cuDeviceTotalMem_v2(size_t *out, int index) { return *out = card_bytes(), OK; }
int cuDevicePrimaryCtxGetState(int index, unsigned *flags, int *active) { return *flags = 0, *active = 1, OK; }
int cuDevicePrimaryCtxRetain(void **out, int index) { return *out = something, OK; }
int cuCtxGetCurrent(void **out) { return *out = something, OK; }
int cuCtxSetCurrent(void *context) { return OK; }
int cuCtxGetDevice(int *out) { return *out = device, OK; }
int cuCtxGetLimit(size_t *out, int limit) { return *out = 1 << 20, OK; }
int cuCtxSetLimit(int limit, size_t value) { return OK; }
int cuGetErrorString(int error, const char **out) { return *out = cudaGetErrorString(error), OK; }
int cuModuleLoadData(void **out, const void *image) { return *out = something, OK; }
int cuModuleLoadDataEx(void **out, const void *image) { return *out = something, OK; }
int cuModuleLoad(void **out, const char *path) { return *out = something, OK; }
int cuModuleUnload(void *module) { return OK; }
int cuModuleGetFunction(void **out, void *module, const char *name) { return *out = something, OK; }
int cuFuncGetAttribute(int *out, int number, void *function) { return *out = number == 0 ? 1024 : number == 4 ? 32 : 0, OK; }
int cuFuncSetAttribute(void *function, int number, int value) { return OK; }
int cuFuncSetCacheConfig(void *function, int config) { return OK; }
int cuTensorMapEncodeTiled(void) { return OK; }
int cuStreamSynchronize(void *stream) { return cudaStreamSynchronize(stream); }
int cuMemGetInfo_v2(size_t *available, size_t *total) { return cudaMemGetInfo(available, total); }
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t size, void *stream) { return copy(to, from, size, stream); }

static int nothing(void) { return OK; }
static int looked_up(const char *name, void **out) {
    char versioned[256];
    snprintf(versioned, sizeof(versioned), "%s_v2", name);
    *out = dlsym(RTLD_DEFAULT, name);
    if (!*out) *out = dlsym(RTLD_DEFAULT, versioned);
    if (!*out) *out = (void *)nothing;
    return OK;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, u64 flags, int *status) {
    if (status) *status = 0;
    return looked_up(name, out);
}
int cudaGetDriverEntryPoint(const char *name, void **out, u64 flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, out, RUNTIME, flags, status);
}
int cuGetProcAddress_v2(const char *name, void **out, int version, u64 flags, int *status) {
    if (status) *status = 0;
    return looked_up(name, out);
}

/* cuBLAS: products compute nothing, and a captured one keeps the address of its workspace. */

typedef struct {
    void *workspace, *stream;
    int math, pointers;
} Blas;
static int product(void *workspace, void *stream) {
    Graph *graph = stream_of(stream)->captured;
    if (graph && workspace) {
        for (size_t i = 0; i < graph->num_workspaces; i++)
            if (graph->workspaces[i] == workspace) return OK;
        graph->workspaces = realloc(graph->workspaces, (graph->num_workspaces + 1) * sizeof(void *));
        Area *area = area_of(workspace);
        if (graph->num_workspaces == 64) abort();
        graph->serials[graph->num_workspaces] = area ? area->serial : 0;
        graph->workspaces[graph->num_workspaces++] = workspace;
    }
    return dead ? 14 : OK; /* CUBLAS_STATUS_INTERNAL_ERROR */
}
int cublasCreate_v2(Blas **out) { return *out = calloc(1, sizeof(Blas)), OK; }
int cublasDestroy_v2(Blas *handle) { return OK; }
int cublasSetStream_v2(Blas *handle, void *stream) { return handle->stream = stream, handle->workspace = NULL, OK; }
int cublasGetStream_v2(Blas *handle, void **out) { return *out = handle->stream, OK; }
int cublasSetWorkspace_v2(Blas *handle, void *workspace, size_t size) {
    handle->workspace = workspace;
    return product(workspace, handle->stream); /* host_kernels.py asks for the handle, and computes the product itself. */
}
int cublasSetMathMode(Blas *handle, int mode) { return handle->math = mode, OK; }
int cublasGetMathMode(Blas *handle, int *out) { return *out = handle->math, OK; }
int cublasGetPointerMode_v2(Blas *handle, int *out) { return *out = handle->pointers, OK; }
int cublasSetPointerMode_v2(Blas *handle, int mode) { return handle->pointers = mode, OK; }
int cublasGemmEx(Blas *handle) { return product(handle->workspace, handle->stream); }
int cublasSgemm_v2(Blas *handle) { return product(handle->workspace, handle->stream); }
int cublasGemmStridedBatchedEx(Blas *handle) { return product(handle->workspace, handle->stream); }
int cublasSgemmStridedBatched(Blas *handle) { return product(handle->workspace, handle->stream); }
int cublasLtCreate(void **out) { return *out = something, OK; }
size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtMatmulDescCreate(void **out) { return *out = something, OK; }
int cublasLtMatrixLayoutCreate(void **out) { return *out = something, OK; }
int cublasLtMatmulPreferenceCreate(void **out) { return *out = something, OK; }
int cublasLtMatmulAlgoGetHeuristic(
    void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int asked, char *found, int *number) {
    memset(found, 0, 96); /* cublasLtMatmulHeuristicResult_t */
    return *number = 1, OK;
}
int cublasLtMatmul(
    void *handle, void *desc, void *alpha, void *a, void *a_, void *b, void *b_, void *beta, void *c, void *c_, void *d,
    void *d_, void *algorithm, void *workspace, size_t size, void *stream) {
    return product(workspace, stream);
}

/* cuDNN */

size_t cudnnGetVersion(void) { return 92000; }
size_t cudnnGetCudartVersion(void) { return RUNTIME; }
const char *cudnnGetErrorString(int error) { return "cuDNN: no kernel without a GPU"; }
int cudnnCreate(void **out) { return *out = something, OK; }
int cudnnBackendCreateDescriptor(int kind, void **out) { return *out = something, OK; }
int cudnnBackendFinalize(void *descriptor) { return CUDNN_NOT_SUPPORTED; }
int cudnnBackendExecute(void) { return CUDNN_NOT_SUPPORTED; }

/* NCCL: groups are made, nothing is sent. With one rank a collective is a copy. */

typedef struct {
    int ranks, rank;
} Comm;
typedef struct {
    char bytes[128];
} UniqueId;
static size_t width(int type) { /* ncclDataType_t */
    static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? widths[type] : 1;
}
int ncclGetVersion(int *out) { return *out = 22907, OK; }
int ncclGetUniqueId(UniqueId *out) {
    memset(out, 0, sizeof(*out));
    *(int *)out = getpid();
    return OK;
}
const char *ncclGetErrorString(int error) { return error ? "an error of the fake NCCL" : "no error"; }
const char *ncclGetLastError(void *comm) { return ""; }
static int comm_of(Comm **out, int ranks, int rank) {
    *out = calloc(1, sizeof(Comm));
    **out = (Comm){ranks, rank};
    return OK;
}
int ncclCommInitRank(Comm **out, int ranks, UniqueId id, int rank) { return comm_of(out, ranks, rank); }
int ncclCommInitRankConfig(Comm **out, int ranks, UniqueId id, int rank, void *config) { return comm_of(out, ranks, rank); }
int ncclCommInitRankScalable(Comm **out, int ranks, int rank, int number, void *ids, void *config) { return comm_of(out, ranks, rank); }
int ncclCommSplit(Comm *comm, int color, int key, Comm **out, void *config) { return comm_of(out, comm->ranks, key); }
int ncclCommCount(Comm *comm, int *out) { return *out = comm->ranks, OK; }
int ncclCommUserRank(Comm *comm, int *out) { return *out = comm->rank, OK; }
int ncclCommGetAsyncError(Comm *comm, int *out) { return *out = OK, OK; }
int ncclCommCuDevice(Comm *comm, int *out) { return *out = device, OK; }
static int sent(void *to, const void *from, size_t count, int type, Comm *comm, void *stream) {
    return comm->ranks == 1 && to != from ? copy(to, from, count * width(type), stream) : dead ? 1 : OK;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *stream) {
    return sent(to, from, count, type, comm, stream);
}
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, Comm *comm, void *stream) {
    return sent(to, from, count, type, comm, stream);
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *stream) {
    return sent(to, from, count, type, comm, stream);
}
int ncclAllGather(const void *from, void *to, size_t count, int type, Comm *comm, void *stream) {
    return sent(to, from, count, type, comm, stream);
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm, void *stream) {
    return sent(to, from, count, type, comm, stream);
}

/* NVML */

#define HANDLE(index) ((void *)(u64)((index) + 1))
#define INDEX(handle) ((int)(u64)(handle) - 1)
enum { NOT_SUPPORTED = 3 };
int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return "an error of the fake NVML"; }
int nvmlDeviceGetCount_v2(unsigned *out) { return *out = device_count(), OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) { return *out = HANDLE(index), OK; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **out) {
    unsigned domain = 0, bus = 1;
    sscanf(id, "%x:%x", &domain, &bus);
    return *out = HANDLE(bus - 1), OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) { return *out = HANDLE(0), OK; }
int nvmlDeviceGetIndex(void *handle, unsigned *out) { return *out = INDEX(handle), OK; }
int nvmlDeviceGetName(void *handle, char *out, unsigned length) { return snprintf(out, length, NAME), OK; }
int nvmlDeviceGetUUID(void *handle, char *out, unsigned length) {
    return snprintf(out, length, "GPU-%08x-0000-0000-0000-000000000000", INDEX(handle) + 1), OK;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { return *major = 9, *minor = 0, OK; }
int nvmlDeviceGetMemoryInfo(void *handle, u64 *out) {
    size_t available, total;
    cudaMemGetInfo(&available, &total);
    return out[0] = total, out[1] = available, out[2] = total - available, OK;
}
int nvmlDeviceGetNumaNodeId(void *handle, unsigned *out) { return NOT_SUPPORTED; }
int nvmlDeviceGetP2PStatus(void *one, void *other, int which, int *out) { return *out = 0, OK; }
int nvmlSystemGetDriverVersion(char *out, unsigned length) { return snprintf(out, length, "580.0"), OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return *out = RUNTIME, OK; }
int nvmlDeviceGetPciInfo_v3(void *handle, char *out) {
    memset(out, 0, 68); /* nvmlPciInfo_t */
    snprintf(out, 16, "0000:%02x:00.0", INDEX(handle) + 1);
    snprintf(out + 36, 32, "00000000:%02x:00.0", INDEX(handle) + 1);
    return OK;
}
