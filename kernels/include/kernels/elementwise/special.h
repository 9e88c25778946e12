// Special functions that are rarely called: computed number by number, in float64.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

enum class SpecialFunction : uint8_t {
  AiryAi,
  BesselJ0,
  BesselJ1,
  BesselY0,
  BesselY1,
  ModifiedBesselI0,
  ModifiedBesselI1,
  ModifiedBesselK0,
  ModifiedBesselK1,
  ScaledModifiedBesselK0,
  ScaledModifiedBesselK1,
  SphericalBesselJ0,
  Entr,
  Erfcx,
  LogNdtr,
  Ndtr,
};
// Of x and the degree n, which is cut to an int; Zeta: of the exponent and the shift.
enum class SpecialPairFunction : uint8_t {
  ChebyshevT,
  ChebyshevU,
  ChebyshevV,
  ChebyshevW,
  HermiteH,
  HermiteHe,
  LaguerreL,
  LegendreP,
  Zeta,
};

// Slots "special_unary" and "special_pair": n contiguous elements of float32 or float64.
using SpecialUnaryFn = void(const LaunchContext&, SpecialFunction, DType, int64_t n, void* out,
                            const void* x);
using SpecialPairFn = void(const LaunchContext&, SpecialPairFunction, DType, int64_t n, void* out,
                           const void* a, const void* b);

}  // namespace warptape::kernels
