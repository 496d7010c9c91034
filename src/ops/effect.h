/* ops/effect.h -- the list of ops with effects.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_EFFECT_H
#define OPS_EFFECT_H

#define CH_OPS_EFFECT(X)                                                                       \
    X(identity) X(stop_gradient) X(check_numerics) X(check) X(print) X(host_call)

#endif
