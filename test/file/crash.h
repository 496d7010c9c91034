/* test/file/crash.h -- the states in which a power failure may leave a folder.
 *
 * A recording (t_crash) observes base/sys.h while the code under test changes a folder. From the
 * recording, t_crash_run builds the folder as it may be after a crash: after each prefix of the
 * operations, with any subset of the operations that were not synced. It passes each state to a
 * check.
 *
 *     t_crash *c = t_crash_record(folder, 64 << 20);
 *     save();
 *     t_crash_mark(c);                                  the save has returned: it must last
 *     t_crash_stop(c);
 *     t_crash_run(c, &(t_crash_options){.states = 5000}, is_old_or_new, NULL);
 *
 * The model is POSIX without the additional guarantees of any file system, as in "All File
 * Systems Are Not Created Equal" (ALICE, OSDI 2014):
 *
 *   1. The bytes and the size of a file are durable after an fsync of that file.
 *   2. A name (created, renamed, removed; file or folder) is durable after an fsync of the folder
 *      that contains it. An fsync of the file does not make its name durable.
 *   3. All other effects are pending. A crash keeps any subset of them, so an effect may be lost,
 *      early or late. A rename may take effect before the bytes of the file.
 *   4. A pending write may be torn at multiples of 512 or of 4096 bytes, or only extend the file,
 *      by zeros.
 *   5. A rename keeps the old name, has the new name, or has both names; never none.
 *
 * Modes, owners and times of files are not part of the model.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FILE_CRASH_H
#define TEST_FILE_CRASH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct t_crash t_crash;

/* Starts a recording of `folder`, an absolute path in the spelling of the code under test.
 * Files that it holds now are durable. There must be no other recording. At most `max_bytes` of
 * written bytes are kept; if more are written, t_crash_stop fails the test. */
t_crash *t_crash_record(const char *folder, int64_t max_bytes);
/* Marks a moment. Checks get the number of marks before the crash. */
void t_crash_mark(t_crash *c);
/* Ends the recording. Fails the test if the recording is incomplete: too many bytes, links, or
 * files that were not created through base/sys.h. */
void t_crash_stop(t_crash *c);
void t_crash_free(t_crash *c);
/* Returns the number of syncs, of files and folders. */
int t_crash_syncs(const t_crash *c);

typedef struct t_crash_options {
    int64_t  states;       /* number of different states to check; 0: all but random ones */
    uint64_t seed;         /* of the random states */
    int      without_sync; /* number of a sync that has no effect, from 1; 0: none */
    bool     is_quiet;     /* prints no description of a bad state */
} t_crash_options;

/* Returns true if the state in `folder` is good. The check may change and remove files
 * there. */
typedef bool (*t_crash_check)(void *arg, const char *folder, int n_marks);

/* Checks states until enough or all are checked, or a state is bad. Returns true if all were
 * good. Sets *n_states, which may be NULL, to the number of states. Prints a bad state. */
bool t_crash_run(const t_crash *c, const t_crash_options *opt, t_crash_check check, void *arg,
                 int64_t *n_states);
/* Returns true if the check finds a bad state whenever a single sync has no effect. Prints the
 * syncs whose absence the check did not find. */
bool t_crash_misses_syncs(const t_crash *c, const t_crash_options *opt, t_crash_check check,
                          void *arg);

/* Returns the number in environment variable T_STATES (./dev crash sets it), or `otherwise`. */
int64_t t_crash_states(int64_t otherwise);

#endif
