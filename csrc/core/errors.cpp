#include "core/errors.h"

namespace warptape {

// Out of line so that each class has one type information, in this library.
Error::~Error() = default;
ShapeError::~ShapeError() = default;
DtypeError::~DtypeError() = default;
DeviceError::~DeviceError() = default;
IndexError::~IndexError() = default;
TypeError::~TypeError() = default;
ValueError::~ValueError() = default;
NotImplementedError::~NotImplementedError() = default;
OutOfMemoryError::~OutOfMemoryError() = default;
PythonErrorSet::~PythonErrorSet() = default;

}  // namespace warptape
