/* fit/report/number.c -- numbers as text that reads back to the same double.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/report/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Powers of ten outside [MIN_POWER, MAX_POWER] are written with an exponent. */
enum { MAX_DIGITS = 17, MIN_POWER = -5, MAX_POWER = 15 };

/* Writes the shortest digits that read back to x, and returns the power of ten of the first
 * digit. Only the digits of the text of printf are used, because its decimal point depends on
 * the locale. */
static int shortest(double x, char digit[MAX_DIGITS + 1])
{
    char text[64], *e;
    int  n = 0;

    for (int more = 0; more < MAX_DIGITS; more++) {
        snprintf(text, sizeof(text), "%.*e", more, x);
        if (strtod(text, NULL) == x)
            break;
    }
    e = strchr(text, 'e');
    for (const char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9' && n < MAX_DIGITS)
            digit[n++] = *c;
    digit[n] = '\0';
    return (int)strtol(e + 1, NULL, 10);
}

/* Writes a number without an exponent. */
static void put_plain(const char *sign, const char *digit, int power, char text[40])
{
    int n = (int)strlen(digit);

    if (power < 0)
        snprintf(text, 40, "%s0.%.*s%s", sign, -power - 1, "0000000", digit);
    else if (n <= power + 1)
        snprintf(text, 40, "%s%s%.*s", sign, digit, power + 1 - n, "00000000000000000");
    else
        snprintf(text, 40, "%s%.*s.%s", sign, power + 1, digit, digit + power + 1);
}

ch_number_text ch__number_text(double x, bool is_json)
{
    ch_number_text o;
    char           digit[MAX_DIGITS + 1] = "";
    const char    *sign = signbit(x) ? "-" : "";
    int            power;

    if (!isfinite(x)) {
        snprintf(o.text, sizeof(o.text), "%s",
                 is_json    ? "null"
                 : isnan(x) ? "nan"
                 : x > 0    ? "inf"
                            : "-inf");
        return o;
    }
    power = shortest(fabs(x), digit);
    if (power >= MIN_POWER && power <= MAX_POWER)
        put_plain(sign, digit, power, o.text);
    else
        snprintf(o.text, sizeof(o.text), "%s%c%s%se%+03d", sign, digit[0],
                 digit[1] != '\0' ? "." : "", digit + 1, power);
    return o;
}

ch_number_text ch__rounded_text(double x, double parts)
{
    return ch__number_text(nearbyint(x * parts) / parts, true);
}
