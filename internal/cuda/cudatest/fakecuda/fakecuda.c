// A CUDA driver without a GPU, for tests. Its device memory is host memory, and
// it is stricter than a real driver wherever that makes a mistake visible:
//
//   - Each stream is a thread that does its work late and out of step with the
//     caller: if the caller doesn't wait, a copy reads what was overwritten since.
//   - A copy whose memory was freed while it was queued fails, and so does every
//     call in its context after it, as after an illegal address on a GPU. A
//     context can be made to fail so, at once or late. One that is lost (709)
//     can't be pushed or retained either, and what was in it is gone.
//   - Another program's context can be current on every thread.
//   - Calls must come from a thread whose current context owns the handles.
//   - New memory holds garbage. The CPU can't read a device address.
//   - Frees of what isn't there fail. All mistakes of callers are counted.
//
// A call can be told to fail. One that allocates or queues then does nothing.
// One that frees or waits does its work all the same: from those, real drivers
// report the errors of earlier work.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	ILLEGAL_ADDRESS = 700,
	CONTEXT_IS_DESTROYED = 709,
};

enum { HOST, DEVICE, STREAM, EVENT, RETAINED, CURRENT }; // what fake_live counts

#define MAX_GPUS 8
#define ON_DEVICE (1ULL << 62) // set in every device address

// A mark is one recording of an event, shared by the event, the stream that
// completes it and those who wait, so that each may go first.
typedef struct mark {
	int refs, done;
} mark;

typedef struct work {
	struct work *next;
	enum { COPY, RECORD } what;
	uint64_t dst, src;
	size_t size;
	void *staged; // the source of a copy from ordinary memory, taken at the call
	mark *mark;
} work;

typedef struct context {
	int gpu, refs; // refs: how often it is retained; 0 is no context
	int broken;    // the result of every call in it from now on
	int break_in, break_code; // which the copy after so many makes it
} context;

typedef struct object {
	struct object *next;
	int kind;
	context *ctx;
	char *mem; // HOST, DEVICE
	size_t size;
	int busy;           // copies that run over it now
	work *head, **tail; // STREAM: its work in order; the head stays while it runs
	int closing;
	pthread_t thread;
	mark *mark; // EVENT: its latest recording
} object;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // over all of these:
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static object *objects;
static context primary[MAX_GPUS], users[MAX_GPUS];
static uint64_t limit[2], used[2][MAX_GPUS]; // bytes of HOST (all in [0]) and DEVICE memory
static int gpus, initialized, pushed, calls, misuses, delay_us, held, fail_in, fail_code;
static char fail_names[128]; // with spaces between them; "" is any call
static const char *failed; // the call that failed
static context *outer;     // current on every thread on which nothing is pushed
static uint64_t seed = 88172645463325252ULL;

static __thread context *stack[8];
static __thread int depth;
static __thread int denied; // the call in progress is a mistake of its caller

static context *current(void) { return depth ? stack[depth - 1] : outer; }

static int lost(const context *ctx) { return ctx->broken == CONTEXT_IS_DESTROYED; }

// meant tells whether a call is one of those that are told to fail.
static int meant(const char *name) {
	size_t n = strlen(name);
	for (const char *at = fail_names; (at = strstr(at, name)); at += n)
		if ((at == fail_names || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return 1;
	return !*fail_names;
}

// enter begins a call and takes the lock; leave gives it back. A result other
// than SUCCESS is the call's, but only where it is denied must nothing be freed.
enum { ANYTIME, STARTED, IN_CONTEXT };

static CUresult enter(const char *name, int needs) {
	pthread_mutex_lock(&lock);
	calls++;
	denied = 1;
	if (needs >= STARTED && !initialized) return NOT_INITIALIZED;
	if (needs == IN_CONTEXT && (!current() || !current()->refs)) return INVALID_CONTEXT;
	denied = 0;
	if (fail_in && meant(name) && (fail_in < 0 || --fail_in == 0)) {
		failed = name;
		return fail_code;
	}
	return needs == IN_CONTEXT ? current()->broken : SUCCESS;
}

static CUresult leave(CUresult r) {
	misuses += denied;
	pthread_mutex_unlock(&lock);
	return r;
}

static CUresult deny(CUresult r) {
	denied = 1;
	return leave(r);
}

static void drop(mark *m) {
	if (m && --m->refs == 0) free(m);
}

static void await(mark *m) {
	if (!m) return;
	for (m->refs++; !m->done;) pthread_cond_wait(&changed, &lock);
	drop(m);
}

static object *add(int kind, context *ctx) {
	object *o = calloc(1, sizeof *o);
	o->kind = kind, o->ctx = ctx, o->tail = &o->head, o->next = objects;
	return objects = o;
}

// find returns the live object with that handle, NULL where it isn't one of
// the current context's.
static object *find(int kind, const void *handle) {
	for (object *o = objects; o; o = o->next)
		if (o == handle) return o->kind == kind && o->ctx == current() ? o : NULL;
	return NULL;
}

static uint64_t base(const object *o) { return (uint64_t)o->mem | (o->kind == DEVICE ? ON_DEVICE : 0); }

static char *plain(uint64_t address) { return (char *)(address & ~ON_DEVICE); }

// holding returns the live memory in which those bytes lie.
static object *holding(uint64_t address, size_t size) {
	for (object *o = objects; o; o = o->next)
		if (o->mem && address >= base(o) && size <= o->size && address - base(o) <= o->size - size) return o;
	return NULL;
}

static void discard(object *gone) {
	while (gone->busy) pthread_cond_wait(&changed, &lock);
	object **o = &objects;
	while (*o != gone) o = &(*o)->next;
	*o = gone->next;
	if (gone->mem) used[gone->kind][gone->kind == DEVICE ? gone->ctx->gpu : 0] -= gone->size;
	drop(gone->mark);
	free(gone->mem);
	free(gone);
}

static CUresult allocate(int kind, size_t size, object **out) {
	int at = kind == DEVICE ? current()->gpu : 0;
	void *mem;
	if (!size) return INVALID_VALUE;
	if (size > limit[kind] - used[kind][at] || posix_memalign(&mem, 4096, size)) return OUT_OF_MEMORY;
	memset(mem, 0xA5, size);
	used[kind][at] += size;
	*out = add(kind, current());
	(*out)->mem = mem, (*out)->size = size;
	return SUCCESS;
}

// Streams.

static void perform(context *ctx, work *w) {
	if (w->what == RECORD) w->mark->done = 1;
	if (w->what != COPY || ctx->broken) return;
	if (ctx->break_in && --ctx->break_in == 0) {
		ctx->broken = ctx->break_code;
		return;
	}
	object *dst = holding(w->dst, w->size), *src = w->staged ? dst : holding(w->src, w->size);
	if (!dst || !src) {
		ctx->broken = ILLEGAL_ADDRESS;
		return;
	}
	dst->busy++, src->busy++;
	pthread_mutex_unlock(&lock);
	memcpy(plain(w->dst), w->staged ? w->staged : plain(w->src), w->size);
	pthread_mutex_lock(&lock);
	dst->busy--, src->busy--;
}

static void finish(work *w) {
	drop(w->mark);
	free(w->staged);
	free(w);
	pthread_cond_broadcast(&changed);
}

static void dawdle(void) {
	seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
	struct timespec t = {0, delay_us > 0 ? (long)(seed % (uint64_t)delay_us) * 1000 : 0};
	pthread_mutex_unlock(&lock);
	if (t.tv_nsec) nanosleep(&t, NULL);
	pthread_mutex_lock(&lock);
}

static void *run(void *stream) {
	object *s = stream;
	pthread_mutex_lock(&lock);
	for (;;) {
		while ((!s->head || held) && !s->closing) pthread_cond_wait(&changed, &lock);
		work *w = s->head;
		if (!w) break;
		dawdle();
		perform(s->ctx, w);
		if (!(s->head = w->next)) s->tail = &s->head;
		finish(w);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static object *open_stream(context *ctx) {
	object *s = add(STREAM, ctx);
	pthread_create(&s->thread, NULL, run, s);
	return s;
}

static void drain(object *s) {
	while (s->head) pthread_cond_wait(&changed, &lock);
}

static void close_stream(object *s) {
	s->closing = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&lock);
	discard(s);
}

// queue does the work at once where there is no delay at all; that measures the
// cost of calls without the cost of threads.
static void queue(object *s, work w) {
	work *o = malloc(sizeof *o);
	*o = w;
	if (w.mark) w.mark->refs++;
	if (delay_us < 0 && !s->head) {
		perform(s->ctx, o);
		finish(o);
		return;
	}
	*s->tail = o;
	s->tail = &o->next;
	pthread_cond_broadcast(&changed);
}

static void copy(object *s, uint64_t dst, uint64_t src, size_t size) {
	work w = {.what = COPY, .dst = dst, .src = src, .size = size};
	if (!holding(src, 1)) w.staged = memcpy(malloc(size), plain(src), size);
	queue(s, w);
}

static void record(object *event, object *s) {
	drop(event->mark);
	event->mark = calloc(1, sizeof *event->mark);
	event->mark->refs = 1;
	queue(s, (work){.what = RECORD, .mark = event->mark});
}

// The driver's interface.

CUresult cuInit(unsigned flags) {
	CUresult r = enter("cuInit", ANYTIME);
	if (r) return leave(r);
	initialized = gpus > 0;
	return leave(flags ? INVALID_VALUE : gpus ? SUCCESS : NO_DEVICE);
}

CUresult cuDriverGetVersion(int *version) {
	CUresult r = enter("cuDriverGetVersion", ANYTIME);
	if (!r) *version = 12080;
	return leave(r);
}

CUresult cuDeviceGetCount(int *n) {
	CUresult r = enter("cuDeviceGetCount", STARTED);
	if (!r) *n = gpus;
	return leave(r);
}

CUresult cuDeviceGet(int *gpu, int ordinal) {
	CUresult r = enter("cuDeviceGet", STARTED);
	if (r) return leave(r);
	if (ordinal < 0 || ordinal >= gpus) return deny(INVALID_DEVICE);
	*gpu = ordinal;
	return leave(r);
}

CUresult cuDeviceGetName(char *name, int size, int gpu) {
	CUresult r = enter("cuDeviceGetName", STARTED);
	if (!r) snprintf(name, (size_t)size, "Fake GPU %d", gpu);
	return leave(r);
}

CUresult cuDeviceTotalMem_v2(size_t *size, int gpu) {
	(void)gpu;
	CUresult r = enter("cuDeviceTotalMem_v2", STARTED);
	if (!r) *size = limit[DEVICE];
	return leave(r);
}

CUresult cuDevicePrimaryCtxRetain(context **ctx, int gpu) {
	CUresult r = enter("cuDevicePrimaryCtxRetain", STARTED);
	if (r) return leave(r);
	if (gpu < 0 || gpu >= gpus) return deny(INVALID_DEVICE);
	if (lost(&primary[gpu])) return leave(primary[gpu].broken);
	*ctx = &primary[gpu];
	(*ctx)->refs++;
	return leave(r);
}

CUresult cuDevicePrimaryCtxRelease_v2(int gpu) {
	CUresult r = enter("cuDevicePrimaryCtxRelease_v2", STARTED);
	if (denied) return leave(r);
	if (gpu < 0 || gpu >= gpus || !primary[gpu].refs) return deny(INVALID_CONTEXT);
	primary[gpu].refs--;
	return leave(r);
}

CUresult cuCtxPushCurrent_v2(context *ctx) {
	CUresult r = enter("cuCtxPushCurrent_v2", STARTED);
	if (r) return leave(r);
	for (int i = 0; i < gpus; i++)
		if ((ctx == &primary[i] || ctx == &users[i]) && ctx->refs && depth < 8) {
			if (lost(ctx)) return leave(ctx->broken);
			stack[depth++] = ctx;
			pushed++;
			return leave(r);
		}
	return deny(INVALID_CONTEXT);
}

CUresult cuCtxPopCurrent_v2(context **ctx) {
	CUresult r = enter("cuCtxPopCurrent_v2", STARTED);
	if (denied) return leave(r);
	if (!depth) return deny(INVALID_CONTEXT);
	depth--, pushed--;
	if (ctx) *ctx = stack[depth];
	return leave(r);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
	CUresult r = enter("cuMemGetInfo_v2", IN_CONTEXT);
	if (r) return leave(r);
	*total = limit[DEVICE];
	*free = limit[DEVICE] - used[DEVICE][current()->gpu];
	return leave(r);
}

CUresult cuMemAlloc_v2(uint64_t *address, size_t size) {
	CUresult r = enter("cuMemAlloc_v2", IN_CONTEXT);
	object *o;
	if (!r && !(r = allocate(DEVICE, size, &o))) *address = base(o);
	return leave(r);
}

CUresult cuMemFree_v2(uint64_t address) {
	CUresult r = enter("cuMemFree_v2", IN_CONTEXT);
	if (denied) return leave(r);
	object *o = holding(address, 1);
	if (!o || o->kind != DEVICE || o->ctx != current() || base(o) != address) return deny(INVALID_VALUE);
	discard(o);
	return leave(r);
}

CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
	CUresult r = enter("cuMemHostAlloc", IN_CONTEXT);
	if (r) return leave(r);
	if (flags != 1) return deny(INVALID_VALUE); // 1 is portable
	object *o;
	if (!(r = allocate(HOST, size, &o))) *address = o->mem;
	return leave(r);
}

CUresult cuMemFreeHost(void *address) {
	CUresult r = enter("cuMemFreeHost", IN_CONTEXT);
	if (denied) return leave(r);
	object *o = holding((uint64_t)address, 1);
	if (!o || o->kind != HOST || o->mem != address || !o->ctx->refs) return deny(INVALID_VALUE);
	discard(o);
	return leave(r);
}

CUresult cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t size, object *stream) {
	CUresult r = enter("cuMemcpyHtoDAsync_v2", IN_CONTEXT);
	if (r) return leave(r);
	object *s = find(STREAM, stream), *to = holding(dst, size);
	if (!s) return deny(INVALID_HANDLE);
	if (!to || to->kind != DEVICE || to->ctx->gpu != s->ctx->gpu) return deny(INVALID_VALUE);
	copy(s, dst, (uint64_t)src, size);
	return leave(r);
}

CUresult cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t size) {
	CUresult r = enter("cuMemcpyDtoH_v2", IN_CONTEXT);
	if (r) return leave(r);
	if (!holding(src, size)) return deny(INVALID_VALUE);
	memcpy(dst, plain(src), size);
	return leave(r);
}

CUresult cuStreamCreate(object **stream, unsigned flags) {
	CUresult r = enter("cuStreamCreate", IN_CONTEXT);
	if (r) return leave(r);
	if (flags != 1) return deny(INVALID_VALUE); // 1 is non-blocking
	*stream = open_stream(current());
	return leave(r);
}

CUresult cuStreamDestroy_v2(object *stream) {
	CUresult r = enter("cuStreamDestroy_v2", IN_CONTEXT);
	if (denied) return leave(r);
	object *s = find(STREAM, stream);
	if (!s) return deny(INVALID_HANDLE);
	misuses += s->head != NULL; // a real one would be destroyed under its work
	close_stream(s);
	return leave(r);
}

CUresult cuStreamSynchronize(object *stream) {
	CUresult r = enter("cuStreamSynchronize", IN_CONTEXT);
	if (denied) return leave(r);
	object *s = find(STREAM, stream);
	if (!s) return deny(INVALID_HANDLE);
	drain(s);
	return leave(r ? r : current()->broken);
}

CUresult cuEventCreate(object **event, unsigned flags) {
	CUresult r = enter("cuEventCreate", IN_CONTEXT);
	if (r) return leave(r);
	if (flags != 3) return deny(INVALID_VALUE); // 3 is without timing, waits without spinning
	*event = add(EVENT, current());
	return leave(r);
}

CUresult cuEventDestroy_v2(object *event) {
	CUresult r = enter("cuEventDestroy_v2", IN_CONTEXT);
	if (denied) return leave(r);
	object *e = find(EVENT, event);
	if (!e) return deny(INVALID_HANDLE);
	discard(e);
	return leave(r);
}

CUresult cuEventRecord(object *event, object *stream) {
	CUresult r = enter("cuEventRecord", IN_CONTEXT);
	if (r) return leave(r);
	object *e = find(EVENT, event), *s = find(STREAM, stream);
	if (!e || !s) return deny(INVALID_HANDLE);
	record(e, s);
	return leave(r);
}

CUresult cuEventSynchronize(object *event) {
	CUresult r = enter("cuEventSynchronize", IN_CONTEXT);
	if (denied) return leave(r);
	object *e = find(EVENT, event);
	if (!e) return deny(INVALID_HANDLE);
	await(e->mark);
	return leave(r ? r : current()->broken);
}

// What tests control. None of these is a call that is counted or can fail.

__attribute__((constructor)) void fake_reset(void) {
	pthread_mutex_lock(&lock);
	for (object *o = objects, *next; o; o = next) {
		next = o->next;
		if (o->kind == STREAM) close_stream(o);
	}
	while (objects) discard(objects);
	for (int i = 0; i < MAX_GPUS; i++) primary[i] = users[i] = (context){.gpu = i};
	gpus = 1, delay_us = 100;
	limit[HOST] = limit[DEVICE] = 1 << 30;
	failed = "";
	initialized = held = pushed = depth = calls = misuses = fail_in = 0;
	outer = NULL;
	pthread_mutex_unlock(&lock);
}

// fake_gpus: 0 to 8 of them.
void fake_gpus(int n) {
	pthread_mutex_lock(&lock);
	gpus = n;
	initialized &= n > 0;
	pthread_mutex_unlock(&lock);
}

// fake_limit bounds each GPU's memory, or all page-locked memory.
void fake_limit(int kind, uint64_t bytes) {
	pthread_mutex_lock(&lock);
	limit[kind] = bytes;
	pthread_mutex_unlock(&lock);
}

// fake_delay: each piece of a stream's work starts up to that much late. Below
// zero, streams have no thread and the caller does the work.
void fake_delay(int us) {
	pthread_mutex_lock(&lock);
	delay_us = us;
	pthread_mutex_unlock(&lock);
}

// fake_hold keeps streams from beginning a piece of work.
void fake_hold(int on) {
	pthread_mutex_lock(&lock);
	held = on;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

// fake_fail makes the n-th call from now fail, or all if n is -1; of the calls of those
// names, if any.
void fake_fail(const char *names, int n, int code) {
	pthread_mutex_lock(&lock);
	snprintf(fail_names, sizeof fail_names, "%s", names);
	fail_in = n, fail_code = code, failed = "";
	pthread_mutex_unlock(&lock);
}

// fake_break makes a context fail, and stay so: at once or, if copies isn't 0, when
// its streams begin the copy after so many.
void fake_break(context *ctx, int code, int copies) {
	pthread_mutex_lock(&lock);
	if (copies) ctx->break_in = copies + 1, ctx->break_code = code;
	else ctx->broken = code;
	pthread_mutex_unlock(&lock);
}

// fake_outer makes a context current on every thread that has none of its own.
void fake_outer(context *ctx) {
	pthread_mutex_lock(&lock);
	outer = ctx;
	pthread_mutex_unlock(&lock);
}

int fake_live(int kind) {
	pthread_mutex_lock(&lock);
	int n = kind == CURRENT ? pushed : 0;
	for (object *o = objects; o; o = o->next) n += o->kind == kind && !lost(o->ctx);
	for (int i = 0; i < MAX_GPUS && kind == RETAINED; i++) n += lost(&primary[i]) ? 0 : primary[i].refs;
	pthread_mutex_unlock(&lock);
	return n;
}

int fake_calls(void) { return calls; }

const char *fake_failed(void) { return failed; }

// fake_misuses counts anew each time that it is asked.
int fake_misuses(void) {
	int n = misuses;
	misuses = 0;
	return n;
}

// A program's own contexts.

context *fake_primary(int gpu) { return &primary[gpu]; }
int fake_retained(int gpu) { return primary[gpu].refs; }

context *fake_context(int gpu) {
	users[gpu].refs = 1;
	return &users[gpu];
}

// fake_read copies bytes of the device to dst, with whatever they hold now.
int fake_read(void *dst, uint64_t src, size_t size) {
	pthread_mutex_lock(&lock);
	int ok = holding(src, size) != NULL;
	if (ok) memcpy(dst, plain(src), size);
	pthread_mutex_unlock(&lock);
	return ok;
}
