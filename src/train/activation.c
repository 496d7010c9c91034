/* train/activation.c -- the activation functions of layers, by their number.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/math.h"
#include "train/layer.h"

static ch_node *linear(ch_node *x)
{
    return x;
}

static ch_node *leaky_relu(ch_node *x)
{
    return ch_leaky_relu(x, 0.2);
}

static ch_node *elu(ch_node *x)
{
    return ch_elu(x, 1);
}

static ch_node *softmax(ch_node *x)
{
    return ch_softmax(x, -1);
}

static ch_node *(*const activation[])(ch_node *) = {
    [CH_LINEAR] = linear,   [CH_RELU] = ch_relu,       [CH_LEAKY_RELU] = leaky_relu,
    [CH_ELU] = elu,         [CH_GELU] = ch_gelu,       [CH_SILU] = ch_silu,
    [CH_TANH] = ch_tanh,    [CH_SIGMOID] = ch_sigmoid, [CH_SOFTPLUS] = ch_softplus,
    [CH_SOFTMAX] = softmax,
};

bool ch__is_activation(ch_activation a)
{
    return (unsigned)a < sizeof(activation) / sizeof(activation[0]);
}

ch_node *ch__activate(ch_node *x, ch_activation a)
{
    return activation[a](x);
}
