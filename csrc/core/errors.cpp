#include "core/errors.h"

#include "core/frontend.h"

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
AssertionError::~AssertionError() = default;
LinAlgError::~LinAlgError() = default;
OutOfMemoryError::~OutOfMemoryError() = default;
DistBackendError::~DistBackendError() = default;
DistNetworkError::~DistNetworkError() = default;
DistStoreError::~DistStoreError() = default;
OpaqueError::~OpaqueError() = default;
PythonErrorSet::~PythonErrorSet() = default;

void warn(const std::string& text) { frontend().warn(text.c_str()); }

}  // namespace warptape
