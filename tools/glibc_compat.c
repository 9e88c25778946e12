/* What headers newer than glibc 2.28 refer to, for the libraries of a wheel (tools/build_wheel.py). */
#include <pthread.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* glibc 2.32 sets it while a process has one thread, so that shared_ptr counts without atomics. Here: never. */
HIDDEN char __libc_single_threaded = 0;

/* glibc 2.30: std::condition_variable waits by the steady clock. Before it, waits went by the system's clock. */
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* until) {
  struct timespec then;
  struct timespec now;
  if (clock == CLOCK_REALTIME) {
    return pthread_cond_timedwait(condition, mutex, until);
  }
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &then);
  then.tv_sec += until->tv_sec - now.tv_sec;
  then.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (then.tv_nsec < 0) {
    then.tv_nsec += 1000000000;
    --then.tv_sec;
  } else if (then.tv_nsec >= 1000000000) {
    then.tv_nsec -= 1000000000;
    ++then.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &then);
}
