; The thread pool. `cpu_pool.py` explains it, fills in the constants, compiles and calls it.
; IR and not C: there is no compiler where ruda runs. Not numba: cached kernels do without it.

%Time = type { i64, i64 }                       ; struct timespec: seconds, nanoseconds
%Job = type {
  i64, i64, i64, i64, i64, i64,                 ; 0 body 1 args 2 first 3 count 4 chunk 5 chunks
  i64, i64, [8 x i64],                          ; 6 waiting: the caller sleeps 7 stop: interrupted
  i64, [15 x i64],                              ; 9 state: permits << 32 | helpers
  i64, [15 x i64]                               ; 11 next: the chunk to claim
}

; What a thread that runs a body knows of its launch. A body gets its address, and calls `poll`,
; whose address is the first word, as it goes round long loops.
%Watch = type {
  ptr, ptr,                                     ; 0 poll 1 where it says that the launch is stopped
  i64, ptr,                                     ; 2 the GIL: see below 3 the Python thread
  i64, i64, i64                                 ; 4 when to look for signals 5 one raised 6 own stop
}                                               ; 2: 0 a worker has none, 1 held, 2 let go

@jobs = internal global [64 x %Job] zeroinitializer, align 128
@free = internal global i64 0, align 128        ; bit i: jobs[i] belongs to nobody
@open = internal global i64 0, align 128        ; bit i: jobs[i] may be joined
@epoch = internal global i64 0, align 128       ; grows with every job that may be joined
@idle = internal global i64 0, align 128        ; sleeping workers << 32 | spinning workers
@workers = internal global i64 0, align 128     ; threads started
@asked = internal global i64 0                  ; threads that it was tried to start
@generation = internal global i64 0             ; grows with every reset
@key = internal global i64 0                    ; not null on a worker
@mutex = internal global [16 x i64] zeroinitializer, align 128
@work_added = internal global [16 x i64] zeroinitializer, align 16
@job_left = internal global [16 x i64] zeroinitializer, align 16
@lost_error = global ptr null                   ; the exception class for a launch lost in a fork
@lost_message = internal constant [${LOST_SIZE} x i8] c"${LOST}\00"

declare i32 @clock_gettime(i32, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_SetString(ptr, ptr)
declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(${KEY})
declare i32 @pthread_setspecific(${KEY}, ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_timedwait(ptr, ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sigdelset(ptr, i32)
${DECLARE_PAUSE}

define internal i64 @now(i32 %clock) {
  %time = alloca %Time
  call i32 @clock_gettime(i32 %clock, ptr %time)
  %s = load i64, ptr %time
  %ns_at = getelementptr %Time, ptr %time, i32 0, i32 1
  %ns = load i64, ptr %ns_at
  %s_ns = mul i64 %s, 1000000000
  %sum = add i64 %s_ns, %ns
  ret i64 %sum
}

; Items lo..hi of a body, here and now. A body never raises: in place of an exception it has the
; watch. It writes a null pointer through the first argument.
define internal void @execute(i64 %body, i64 %args, i64 %lo, i64 %hi, ptr %watch) {
  %result = alloca [8 x i64], align 64
  %function = inttoptr i64 %body to ptr
  call i32 %function(ptr %result, ptr %watch, i64 %args, i64 %lo, i64 %hi)
  ret void
}

; The same for a caller that holds the GIL. Returns 0, or -1 with an exception set.
define i32 @serial(i64 %body, i64 %args, i64 %lo, i64 %hi) {
  %watch = alloca %Watch
  call void @begin(ptr %watch, i64 1)
  call void @execute(i64 %body, i64 %args, i64 %lo, i64 %hi, ptr %watch)
  %failed = call i32 @regain(ptr %watch)
  ret i32 %failed
}

; ---- interrupts --------------------------------------------------------------------------------

define internal void @begin(ptr %watch, i64 %lock) {
  %stop_at = getelementptr %Watch, ptr %watch, i32 0, i32 1
  %lock_at = getelementptr %Watch, ptr %watch, i32 0, i32 2
  %due_at = getelementptr %Watch, ptr %watch, i32 0, i32 4
  %raised_at = getelementptr %Watch, ptr %watch, i32 0, i32 5
  %own_at = getelementptr %Watch, ptr %watch, i32 0, i32 6
  store ptr @poll, ptr %watch
  store ptr %own_at, ptr %stop_at
  store i64 %lock, ptr %lock_at
  store i64 0, ptr %due_at
  store i64 0, ptr %raised_at
  store i64 0, ptr %own_at
  ret void
}

define internal void @let_go(ptr %watch) {
  %lock_at = getelementptr %Watch, ptr %watch, i32 0, i32 2
  %thread_at = getelementptr %Watch, ptr %watch, i32 0, i32 3
  %thread = call ptr @PyEval_SaveThread()
  store ptr %thread, ptr %thread_at
  store i64 2, ptr %lock_at
  ret void
}

; Hold the GIL again. Returns -1 if a signal handler has raised an exception meanwhile, else 0.
define internal i32 @regain(ptr %watch) {
entry:
  %lock_at = getelementptr %Watch, ptr %watch, i32 0, i32 2
  %thread_at = getelementptr %Watch, ptr %watch, i32 0, i32 3
  %raised_at = getelementptr %Watch, ptr %watch, i32 0, i32 5
  %lock = load i64, ptr %lock_at
  %held = icmp eq i64 %lock, 1
  br i1 %held, label %out, label %restore
restore:
  %thread = load ptr, ptr %thread_at
  call void @PyEval_RestoreThread(ptr %thread)
  store i64 1, ptr %lock_at
  br label %out
out:
  %raised = load i64, ptr %raised_at
  %failed = trunc i64 %raised to i32
  ret i32 %failed
}

; What a body calls in a long loop: true to go on, false to return at once. Every SLICE the caller's
; thread looks for signals, and first lets the GIL go if it has held it until then.
define internal i1 @poll(ptr %watch) {
entry:
  %stop_at_at = getelementptr %Watch, ptr %watch, i32 0, i32 1
  %lock_at = getelementptr %Watch, ptr %watch, i32 0, i32 2
  %due_at = getelementptr %Watch, ptr %watch, i32 0, i32 4
  %raised_at = getelementptr %Watch, ptr %watch, i32 0, i32 5
  %stop_at = load ptr, ptr %stop_at_at
  %stop = load atomic i64, ptr %stop_at monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %no, label %whose
whose:
  %lock = load i64, ptr %lock_at
  %helper = icmp eq i64 %lock, 0
  br i1 %helper, label %yes, label %clock
clock:
  %time = call i64 @now(i32 ${MONOTONIC})
  %due = load i64, ptr %due_at
  %early = icmp slt i64 %time, %due
  br i1 %early, label %yes, label %look
look:
  %later = add i64 %time, ${SLICE}
  store i64 %later, ptr %due_at
  %generation = load i64, ptr @generation
  call i32 @regain(ptr %watch)
  %failed = call i32 @PyErr_CheckSignals()
  call void @let_go(ptr %watch)
  %raised = sext i32 %failed to i64
  store i64 %raised, ptr %raised_at
  %generation1 = load i64, ptr @generation
  %child = icmp ne i64 %generation, %generation1
  %own_at = getelementptr %Watch, ptr %watch, i32 0, i32 6
  %shared = icmp ne ptr %stop_at, %own_at
  %lost = and i1 %child, %shared                ; the handler forked: the job stayed with the parent
  %bad = icmp ne i32 %failed, 0
  %end = or i1 %bad, %lost
  br i1 %end, label %halt, label %yes
halt:
  store atomic i64 1, ptr %stop_at seq_cst, align 8
  br label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; ---- working on a job --------------------------------------------------------------------------

; Claim chunks and run them: true when none is left, false when the deadline is over, or the launch
; was stopped.
define internal i1 @work(ptr %job, i64 %deadline, ptr %watch) {
entry:
  %stop_at = getelementptr %Job, ptr %job, i32 0, i32 7
  %stop_at_at = getelementptr %Watch, ptr %watch, i32 0, i32 1
  store ptr %stop_at, ptr %stop_at_at
  %args_at = getelementptr %Job, ptr %job, i32 0, i32 1
  %first_at = getelementptr %Job, ptr %job, i32 0, i32 2
  %count_at = getelementptr %Job, ptr %job, i32 0, i32 3
  %chunk_at = getelementptr %Job, ptr %job, i32 0, i32 4
  %chunks_at = getelementptr %Job, ptr %job, i32 0, i32 5
  %next_at = getelementptr %Job, ptr %job, i32 0, i32 11
  %body = load i64, ptr %job
  %args = load i64, ptr %args_at
  %first = load i64, ptr %first_at
  %count = load i64, ptr %count_at
  %chunk = load i64, ptr %chunk_at
  %chunks = load i64, ptr %chunks_at
  br label %claim
claim:
  %i = atomicrmw add ptr %next_at, i64 1 monotonic
  %is_chunk = icmp ult i64 %i, %chunks
  br i1 %is_chunk, label %execute, label %exhausted
execute:
  %before = mul i64 %i, %chunk
  %lo = add i64 %first, %before
  %rest = sub i64 %count, %lo
  %size = call i64 @llvm.umin.i64(i64 %rest, i64 %chunk)
  %hi = add i64 %lo, %size
  call void @execute(i64 %body, i64 %args, i64 %lo, i64 %hi, ptr %watch)
  %time = call i64 @now(i32 ${MONOTONIC})
  %late = icmp sgt i64 %time, %deadline
  %stop = load atomic i64, ptr %stop_at monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  %leave = or i1 %late, %stopped
  br i1 %leave, label %later, label %claim
exhausted:
  ret i1 true
later:
  ret i1 false
}

; Run 1, 2, 4, ... grains of -chunk items until PROBE is over: how many items, and their time.
define internal %Time @probe(i64 %body, i64 %args, i64 %count, i64 %chunk, ptr %watch) {
entry:
  %stop_at = getelementptr %Watch, ptr %watch, i32 0, i32 6
  %negated = sub i64 0, %chunk
  %grain = call i64 @llvm.smax.i64(i64 %negated, i64 1)
  %start = call i64 @now(i32 ${MONOTONIC})
  br label %more
more:
  %done = phi i64 [0, %entry], [%hi, %on]
  %step = phi i64 [%grain, %entry], [%double, %on]
  %rest = sub i64 %count, %done
  %size = call i64 @llvm.umin.i64(i64 %rest, i64 %step)
  %hi = add i64 %done, %size
  call void @execute(i64 %body, i64 %args, i64 %done, i64 %hi, ptr %watch)
  %time = call i64 @now(i32 ${MONOTONIC})
  %elapsed = sub i64 %time, %start
  %late = icmp sgt i64 %elapsed, ${PROBE}
  %all = icmp eq i64 %hi, %count
  %enough = or i1 %late, %all
  %stop = load atomic i64, ptr %stop_at monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  %leave = or i1 %enough, %stopped
  br i1 %leave, label %out, label %on
on:
  %double = shl i64 %step, 1
  br label %more
out:
  %pair = insertvalue %Time undef, i64 %hi, 0
  %both = insertvalue %Time %pair, i64 %elapsed, 1
  ret %Time %both
}

; The chunk for what a probe has left: CHUNK_TIME long, but at least four chunks a thread.
define internal i64 @choose_chunk(%Time %probed, i64 %count, i64 %threads) {
  %done = extractvalue %Time %probed, 0
  %elapsed = extractvalue %Time %probed, 1
  %divisor = call i64 @llvm.smax.i64(i64 %elapsed, i64 1)
  %few = call i64 @llvm.umin.i64(i64 %done, i64 1099511627776)      ; no overflow in the product
  %product = mul i64 %few, ${CHUNK_TIME}
  %timely = udiv i64 %product, %divisor
  %rest = sub i64 %count, %done
  %parts = shl i64 %threads, 2
  %share = udiv i64 %rest, %parts
  %least = call i64 @llvm.umin.i64(i64 %timely, i64 %share)
  %chunk = call i64 @llvm.umax.i64(i64 %least, i64 1)
  %up = add i64 %chunk, 15                      ; many small items: begin on a cache line
  %round = and i64 %up, -16
  %many = icmp ugt i64 %chunk, 255
  %size = select i1 %many, i64 %round, i64 %chunk
  ret i64 %size
}

; ---- workers -----------------------------------------------------------------------------------

define internal i1 @on_worker() {
  %key = load ${KEY}, ptr @key
  %value = call ptr @pthread_getspecific(${KEY} %key)
  %set = icmp ne ptr %value, null
  ret i1 %set
}

; Wake up to two sleepers, if `permits` exceed the workers that are awake and idle.
define internal void @wake(i64 %permits) {
entry:
  %idle = load atomic i64, ptr @idle seq_cst, align 8
  %sleeping = lshr i64 %idle, 32
  %spinning = and i64 %idle, 4294967295
  %missing = sub i64 %permits, %spinning
  %wanted = call i64 @llvm.smax.i64(i64 %missing, i64 0)
  %most = call i64 @llvm.umin.i64(i64 %wanted, i64 %sleeping)
  switch i64 %most, label %two [ i64 0, label %out
                                 i64 1, label %one ]
two:
  call i32 @pthread_mutex_lock(ptr @mutex)      ; a sleeper holds it from its last look to its sleep
  call i32 @pthread_cond_signal(ptr @work_added)
  call i32 @pthread_cond_signal(ptr @work_added)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %out
one:
  call i32 @pthread_mutex_lock(ptr @mutex)
  call i32 @pthread_cond_signal(ptr @work_added)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %out
out:
  ret void
}

; Offer a job to the workers; start those that are missing.
define internal void @publish(i64 %bit, i64 %helpers) {
entry:
  %asked = load atomic i64, ptr @asked monotonic, align 8
  %enough = icmp uge i64 %asked, %helpers
  br i1 %enough, label %offer, label %grow
grow:
  call void @grow(i64 %helpers)
  br label %offer
offer:
  atomicrmw or ptr @open, i64 %bit seq_cst
  atomicrmw add ptr @epoch, i64 1 seq_cst
  call void @wake(i64 %helpers)
  ret void
}

; A thread that cannot be created is done without: the caller works too.
define internal void @grow(i64 %wanted) {
entry:
  %thread = alloca i64
  %attributes = alloca [16 x i64], align 16
  %signals = alloca [16 x i64], align 16
  %before = alloca [16 x i64], align 16
  call i32 @sigfillset(ptr %signals)            ; a new thread inherits what is blocked: signals are
  call i32 @sigdelset(ptr %signals, i32 ${SIGSEGV})     ; for Python's threads, but a fault is the
  call i32 @sigdelset(ptr %signals, i32 ${SIGBUS})      ; worker's own
  call i32 @sigdelset(ptr %signals, i32 ${SIGFPE})
  call i32 @sigdelset(ptr %signals, i32 ${SIGILL})
  call i32 @pthread_sigmask(i32 ${SIG_BLOCK}, ptr %signals, ptr %before)
  call i32 @pthread_mutex_lock(ptr @mutex)
  %asked = load atomic i64, ptr @asked monotonic, align 8
  %more_asked = call i64 @llvm.umax.i64(i64 %asked, i64 %wanted)
  store atomic i64 %more_asked, ptr @asked monotonic, align 8
  call i32 @pthread_attr_init(ptr %attributes)
  call i32 @pthread_attr_setstacksize(ptr %attributes, i64 ${STACK})
  br label %check
check:
  %have = load i64, ptr @workers
  %enough = icmp uge i64 %have, %wanted
  br i1 %enough, label %out, label %create
create:
  %failed = call i32 @pthread_create(ptr %thread, ptr %attributes, ptr @worker, ptr null)
  %success = icmp eq i32 %failed, 0
  br i1 %success, label %created, label %out
created:
  %id = load i64, ptr %thread
  call i32 @pthread_detach(i64 %id)
  %now = add i64 %have, 1
  store i64 %now, ptr @workers
  br label %check
out:
  call i32 @pthread_attr_destroy(ptr %attributes)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  call i32 @pthread_sigmask(i32 ${SIG_SETMASK}, ptr %before, ptr null)
  ret void
}

; Take a permit of an open job: the job, or null.
define internal ptr @join() {
entry:
  %open0 = load atomic i64, ptr @open acquire, align 8
  br label %scan
scan:
  %open = phi i64 [%open0, %entry], [%others, %skip]
  %none = icmp eq i64 %open, 0
  br i1 %none, label %nothing, label %look
nothing:
  ret ptr null
look:
  %index = call i64 @llvm.cttz.i64(i64 %open, i1 true)
  %job = getelementptr [64 x %Job], ptr @jobs, i64 0, i64 %index
  %state_at = getelementptr %Job, ptr %job, i32 0, i32 9
  %state0 = load atomic i64, ptr %state_at monotonic, align 8
  br label %try
try:
  %state = phi i64 [%state0, %look], [%seen, %take]
  %full = icmp ult i64 %state, 4294967296
  br i1 %full, label %skip, label %take
take:
  %taken = sub i64 %state, 4294967295           ; a permit less, a helper more
  %pair = cmpxchg ptr %state_at, i64 %state, i64 %taken acquire monotonic
  %seen = extractvalue { i64, i1 } %pair, 0
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %joined, label %try
skip:
  %less = sub i64 %open, 1
  %others = and i64 %open, %less
  br label %scan
joined:
  atomicrmw sub ptr @idle, i64 1 seq_cst
  %permits = lshr i64 %taken, 32
  %last = icmp eq i64 %permits, 0
  br i1 %last, label %out, label %spread
spread:
  call void @wake(i64 %permits)
  br label %out
out:
  ret ptr %job
}

; The job's memory may serve another launch from the moment when `state` goes down.
define internal void @leave(ptr %job) {
entry:
  %waiting_at = getelementptr %Job, ptr %job, i32 0, i32 6
  %state_at = getelementptr %Job, ptr %job, i32 0, i32 9
  atomicrmw sub ptr %state_at, i64 1 seq_cst
  %waiting = load atomic i64, ptr %waiting_at seq_cst, align 8
  %awake = icmp eq i64 %waiting, 0
  br i1 %awake, label %out, label %tell
tell:
  call i32 @pthread_mutex_lock(ptr @mutex)
  call i32 @pthread_cond_broadcast(ptr @job_left)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %out
out:
  atomicrmw add ptr @idle, i64 1 seq_cst
  ret void
}

; Spin, then sleep, until no helper is left (true) or a slice is over (false).
define internal i1 @wait_for_helpers(ptr %job) {
entry:
  %until = alloca %Time
  %waiting_at = getelementptr %Job, ptr %job, i32 0, i32 6
  %state_at = getelementptr %Job, ptr %job, i32 0, i32 9
  %start = call i64 @now(i32 ${MONOTONIC})
  br label %spin
spin:
  %helpers = load atomic i64, ptr %state_at acquire, align 8
  %ready = icmp eq i64 %helpers, 0
  br i1 %ready, label %done, label %pause
pause:
  ${PAUSE}
  %time = call i64 @now(i32 ${MONOTONIC})
  %spun = sub i64 %time, %start
  %tired = icmp sgt i64 %spun, ${WAIT_SPIN}
  br i1 %tired, label %sleep, label %spin
sleep:
  %wall = call i64 @now(i32 ${REALTIME})        ; pthread_cond_timedwait wants this clock
  %end = add i64 %wall, ${SLICE}
  %s = udiv i64 %end, 1000000000
  %ns = urem i64 %end, 1000000000
  %ns_at = getelementptr %Time, ptr %until, i32 0, i32 1
  store i64 %s, ptr %until
  store i64 %ns, ptr %ns_at
  call i32 @pthread_mutex_lock(ptr @mutex)
  store atomic i64 1, ptr %waiting_at seq_cst, align 8
  br label %check
check:
  %helpers1 = load atomic i64, ptr %state_at seq_cst, align 8
  %ready1 = icmp eq i64 %helpers1, 0
  br i1 %ready1, label %up, label %wait
wait:
  %timeout = call i32 @pthread_cond_timedwait(ptr @job_left, ptr @mutex, ptr %until)
  %told = icmp eq i32 %timeout, 0
  br i1 %told, label %check, label %up
up:
  store atomic i64 0, ptr %waiting_at monotonic, align 8
  call i32 @pthread_mutex_unlock(ptr @mutex)
  %helpers2 = load atomic i64, ptr %state_at acquire, align 8
  %ready2 = icmp eq i64 %helpers2, 0
  ret i1 %ready2
done:
  ret i1 true
}

define internal ptr @worker(ptr %unused) {
entry:
  %watch = alloca %Watch
  call void @begin(ptr %watch, i64 0)
  %key = load ${KEY}, ptr @key
  call i32 @pthread_setspecific(${KEY} %key, ptr @key)
  atomicrmw add ptr @idle, i64 1 seq_cst
  %born = call i64 @now(i32 ${MONOTONIC})
  br label %loop
loop:                                           ; `busy`: when it last had work
  %busy = phi i64 [%born, %entry], [%left, %help], [%busy, %spin], [%busy, %awake]
  %epoch = load atomic i64, ptr @epoch seq_cst, align 8
  %job = call ptr @join()
  %nothing = icmp eq ptr %job, null
  br i1 %nothing, label %pause, label %help
help:
  call i1 @work(ptr %job, i64 9223372036854775807, ptr %watch)
  call void @leave(ptr %job)
  %left = call i64 @now(i32 ${MONOTONIC})
  br label %loop
spin:
  %epoch1 = load atomic i64, ptr @epoch acquire, align 8
  %same = icmp eq i64 %epoch, %epoch1
  br i1 %same, label %pause, label %loop
pause:
  ${PAUSE}
  %time = call i64 @now(i32 ${MONOTONIC})
  %idle = sub i64 %time, %busy
  %tired = icmp sgt i64 %idle, ${IDLE_SPIN}
  br i1 %tired, label %sleep, label %spin
sleep:
  call i32 @pthread_mutex_lock(ptr @mutex)
  atomicrmw add ptr @idle, i64 4294967295 seq_cst       ; a sleeper more, a spinner less
  br label %check
check:
  %epoch2 = load atomic i64, ptr @epoch seq_cst, align 8
  %still = icmp eq i64 %epoch, %epoch2
  br i1 %still, label %wait, label %awake
wait:
  call i32 @pthread_cond_wait(ptr @work_added, ptr @mutex)
  br label %check
awake:
  atomicrmw sub ptr @idle, i64 4294967295 seq_cst
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %loop
}

; As new: at the start, and in a forked child, where the workers do not exist.
define void @reset() {
  store i64 -1, ptr @free
  store i64 0, ptr @open
  store i64 0, ptr @epoch
  store i64 0, ptr @idle
  store i64 0, ptr @workers
  store i64 0, ptr @asked
  %generation = load i64, ptr @generation
  %later = add i64 %generation, 1
  store i64 %later, ptr @generation
  call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  call i32 @pthread_cond_init(ptr @work_added, ptr null)
  call i32 @pthread_cond_init(ptr @job_left, ptr null)
  ret void
}

define void @initialise() {
  call i32 @pthread_key_create(ptr @key, ptr null)
  call void @reset()
  ret void
}

define i64 @worker_count() {
  %workers = load atomic i64, ptr @workers monotonic, align 8
  ret i64 %workers
}

; ---- a launch: start, then resume until it returns 0 -------------------------------------------

; Begin items first..count. 0: done; else a token for `resume`. No GIL.
define internal i64 @start(i64 %body, i64 %args, i64 %first, i64 %count, i64 %chunk, i64 %threads,
                           ptr %watch) {
entry:
  %rest = sub i64 %count, %first
  %rest_less = sub i64 %rest, 1
  %quotient = udiv i64 %rest_less, %chunk
  %chunks = add i64 %quotient, 1
  %some = call i64 @llvm.umin.i64(i64 %threads, i64 ${MAX_THREADS})
  %most = call i64 @llvm.umin.i64(i64 %some, i64 %chunks)
  %helpers = sub i64 %most, 1
  %nested = call i1 @on_worker()
  br i1 %nested, label %inline, label %acquire
acquire:
  %free = load atomic i64, ptr @free monotonic, align 8
  %none = icmp eq i64 %free, 0
  br i1 %none, label %inline, label %try
inline:                                         ; on a worker, or 64 launches are under way
  call void @execute(i64 %body, i64 %args, i64 %first, i64 %count, ptr %watch)
  ret i64 0
try:
  %index = call i64 @llvm.cttz.i64(i64 %free, i1 true)
  %bit = shl i64 1, %index
  %left = xor i64 %free, %bit
  %pair = cmpxchg ptr @free, i64 %free, i64 %left acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %fill, label %acquire
fill:
  %job = getelementptr [64 x %Job], ptr @jobs, i64 0, i64 %index
  %args_at = getelementptr %Job, ptr %job, i32 0, i32 1
  %first_at = getelementptr %Job, ptr %job, i32 0, i32 2
  %count_at = getelementptr %Job, ptr %job, i32 0, i32 3
  %chunk_at = getelementptr %Job, ptr %job, i32 0, i32 4
  %chunks_at = getelementptr %Job, ptr %job, i32 0, i32 5
  %waiting_at = getelementptr %Job, ptr %job, i32 0, i32 6
  %stop_at = getelementptr %Job, ptr %job, i32 0, i32 7
  %state_at = getelementptr %Job, ptr %job, i32 0, i32 9
  %next_at = getelementptr %Job, ptr %job, i32 0, i32 11
  store i64 %body, ptr %job
  store i64 %args, ptr %args_at
  store i64 %first, ptr %first_at
  store i64 %count, ptr %count_at
  store i64 %chunk, ptr %chunk_at
  store i64 %chunks, ptr %chunks_at
  store atomic i64 0, ptr %waiting_at monotonic, align 8
  store atomic i64 0, ptr %stop_at monotonic, align 8
  store atomic i64 0, ptr %next_at monotonic, align 8
  %permits = shl i64 %helpers, 32
  store atomic i64 %permits, ptr %state_at release, align 8
  %alone = icmp eq i64 %helpers, 0
  br i1 %alone, label %begin, label %publish
publish:
  call void @publish(i64 %bit, i64 %helpers)
  br label %begin
begin:
  %generation = load i64, ptr @generation
  %high = shl i64 %generation, 6
  %both = or i64 %high, %index
  %token = add i64 %both, 1
  %result = call i64 @resume(i64 %token, ptr %watch)
  ret i64 %result
}

; Work on a job for one slice. 0: all done; the token: call again; -1: lost in a fork. No GIL.
define internal i64 @resume(i64 %token, ptr %watch) {
entry:
  %both = sub i64 %token, 1
  %index = and i64 %both, 63
  %high = lshr i64 %both, 6
  %generation = load i64, ptr @generation
  %same = icmp eq i64 %high, %generation
  br i1 %same, label %go, label %lost
lost:
  ret i64 -1
go:
  %bit = shl i64 1, %index
  %job = getelementptr [64 x %Job], ptr @jobs, i64 0, i64 %index
  %time = call i64 @now(i32 ${MONOTONIC})
  %deadline = add i64 %time, ${SLICE}
  %exhausted = call i1 @work(ptr %job, i64 %deadline, ptr %watch)
  br i1 %exhausted, label %close, label %later
close:
  %closed = xor i64 %bit, -1
  %state_at = getelementptr %Job, ptr %job, i32 0, i32 9
  %state = load atomic i64, ptr %state_at acquire, align 8
  %alone = icmp eq i64 %state, 0                ; no permits either: never published, or used up
  br i1 %alone, label %unlist, label %withdraw
withdraw:
  %old = atomicrmw and ptr %state_at, i64 4294967295 seq_cst
  %helpers = and i64 %old, 4294967295
  %ready = icmp eq i64 %helpers, 0
  br i1 %ready, label %unlist, label %wait
wait:
  %quiet = call i1 @wait_for_helpers(ptr %job)
  br i1 %quiet, label %unlist, label %later
unlist:
  %listed = load atomic i64, ptr @open monotonic, align 8
  %listed_bit = and i64 %listed, %bit
  %unlisted = icmp eq i64 %listed_bit, 0
  br i1 %unlisted, label %release, label %remove
remove:
  atomicrmw and ptr @open, i64 %closed seq_cst
  br label %release
release:
  atomicrmw or ptr @free, i64 %bit release
  ret i64 0
later:
  ret i64 %token
}

; Nobody claims another chunk of this job, and those under way end at their next poll.
define internal void @cancel(i64 %token) {
  %both = sub i64 %token, 1
  %index = and i64 %both, 63
  %job = getelementptr [64 x %Job], ptr @jobs, i64 0, i64 %index
  %chunks_at = getelementptr %Job, ptr %job, i32 0, i32 5
  %stop_at = getelementptr %Job, ptr %job, i32 0, i32 7
  %next_at = getelementptr %Job, ptr %job, i32 0, i32 11
  %chunks = load i64, ptr %chunks_at
  store atomic i64 1, ptr %stop_at seq_cst, align 8
  store atomic i64 %chunks, ptr %next_at seq_cst, align 8
  ret void
}

; Was the part of a launch that is not shared too long to hold the GIL?
define internal void @remember(%Time %probed, ptr %slow) {
  %elapsed = extractvalue %Time %probed, 1
  %long = icmp sgt i64 %elapsed, ${HOLD}
  %word = zext i1 %long to i64
  store atomic i64 %word, ptr %slow monotonic, align 8
  ret void
}

; Items first..count; chunk <= 0 only with first = 0. GIL held on entry and exit. Returns 0, or -1
; with an exception set.
define internal i32 @run_from(i64 %body, i64 %args, i64 %first, i64 %count, i64 %chunk,
                              i64 %threads, ptr %slow) {
entry:
  %watch = alloca %Watch
  call void @begin(ptr %watch, i64 1)
  call void @let_go(ptr %watch)
  %explicit = icmp sgt i64 %chunk, 0
  br i1 %explicit, label %begin, label %probe
probe:
  %probed = call %Time @probe(i64 %body, i64 %args, i64 %count, i64 %chunk, ptr %watch)
  %done = extractvalue %Time %probed, 0
  call void @remember(%Time %probed, ptr %slow)
  %all = icmp eq i64 %done, %count
  %own_at = getelementptr %Watch, ptr %watch, i32 0, i32 6
  %stop = load i64, ptr %own_at
  %stopped = icmp ne i64 %stop, 0
  %over = or i1 %all, %stopped
  br i1 %over, label %finished, label %measured
measured:
  %chosen = call i64 @choose_chunk(%Time %probed, i64 %count, i64 %threads)
  br label %begin
begin:
  %from = phi i64 [%first, %entry], [%done, %measured]
  %size = phi i64 [%chunk, %entry], [%chosen, %measured]
  %token0 = call i64 @start(i64 %body, i64 %args, i64 %from, i64 %count, i64 %size, i64 %threads,
                            ptr %watch)
  br label %look
look:
  %token = phi i64 [%token0, %begin], [%token1, %continue]
  %raised0 = call i32 @regain(ptr %watch)
  switch i64 %token, label %signals [ i64 0, label %ok
                                      i64 -1, label %lost ]
signals:
  %already = icmp ne i32 %raised0, 0
  br i1 %already, label %stop_it, label %ask
ask:
  %raised = call i32 @PyErr_CheckSignals()
  %calm = icmp eq i32 %raised, 0
  br i1 %calm, label %continue, label %stop_it
continue:
  call void @let_go(ptr %watch)
  %token1 = call i64 @resume(i64 %token, ptr %watch)
  br label %look
stop_it:
  call void @let_go(ptr %watch)
  call void @cancel(i64 %token)
  br label %drain
drain:
  %token2 = call i64 @resume(i64 %token, ptr %watch)
  %more = icmp sgt i64 %token2, 0
  br i1 %more, label %drain, label %drained
drained:
  call i32 @regain(ptr %watch)
  ret i32 -1
lost:
  %error = load ptr, ptr @lost_error
  call void @PyErr_SetString(ptr %error, ptr @lost_message)
  ret i32 -1
finished:
  %failed = call i32 @regain(ptr %watch)
  ret i32 %failed
ok:                                             ; what ran inline may have been stopped too
  ret i32 %raised0
}

define i32 @run(i64 %body, i64 %args, i64 %count, i64 %chunk, i64 %threads) {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %go, label %nothing
go:
  %unused = alloca i64
  %most = call i64 @llvm.smax.i64(i64 %threads, i64 1)
  %result = call i32 @run_from(i64 %body, i64 %args, i64 0, i64 %count, i64 %chunk, i64 %most,
                               ptr %unused)
  ret i32 %result
nothing:
  ret i32 0
}

; `run` for callers that launch one body again and again: `slow` (i64, 1 at first) remembers whether
; the last launch was long. A short one keeps the GIL, because letting it go among busy Python
; threads costs a launch of one microsecond up to five milliseconds.
define i32 @launch(i64 %body, i64 %args, i64 %count, i64 %chunk, i64 %threads, ptr %slow) {
entry:
  %empty = icmp slt i64 %count, 1
  br i1 %empty, label %ok, label %go
go:
  %most = call i64 @llvm.smax.i64(i64 %threads, i64 1)
  %explicit = icmp sgt i64 %chunk, 0
  br i1 %explicit, label %shared, label %auto
auto:
  %was_slow = load atomic i64, ptr %slow monotonic, align 8
  %held = icmp eq i64 %was_slow, 0
  br i1 %held, label %quick, label %released
quick:
  %watch = alloca %Watch
  call void @begin(ptr %watch, i64 1)
  %probed = call %Time @probe(i64 %body, i64 %args, i64 %count, i64 %chunk, ptr %watch)
  %done = extractvalue %Time %probed, 0
  call void @remember(%Time %probed, ptr %slow)
  %failed = call i32 @regain(ptr %watch)
  %raised = icmp ne i32 %failed, 0
  br i1 %raised, label %interrupted, label %held_all
interrupted:
  ret i32 -1
held_all:
  %all = icmp eq i64 %done, %count
  br i1 %all, label %ok, label %rest
rest:
  %chosen = call i64 @choose_chunk(%Time %probed, i64 %count, i64 %most)
  br label %shared
released:
  br label %shared
shared:
  %from = phi i64 [0, %go], [%done, %rest], [0, %released]
  %size = phi i64 [%chunk, %go], [%chosen, %rest], [%chunk, %released]
  %result = call i32 @run_from(i64 %body, i64 %args, i64 %from, i64 %count, i64 %size, i64 %most,
                               ptr %slow)
  ret i32 %result
ok:
  ret i32 0
}
