/* app/cli/text.h -- prints texts, sizes and times, for people and as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stdint.h>
#include <stdio.h>

/* A short text. */
typedef struct cli_text {
    char at[160];
} cli_text;

/* Prints a text of a file. Control characters, which could change the terminal, are printed as
 * \xNN. */
void cli_print(FILE *to, const char *text);
/* Prints a text as a JSON string. Bytes that are not UTF-8 become "?". */
void cli_print_json(FILE *to, const char *text);
/* Prints a number as JSON. NaN and infinities become null. */
void cli_print_json_number(FILE *to, double x);

/* Return a size such as "1.5 MiB", a time such as "2026-11-18 12:50:22" in local time ("-" if it
 * is 0), and a step ("-" if it is -1). */
cli_text cli_bytes(int64_t bytes);
cli_text cli_time(double seconds);
cli_text cli_step(int64_t step);

#endif
