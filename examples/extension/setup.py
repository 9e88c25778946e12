from setuptools import setup
from warptape.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="squared-relu",
    version="1.0",
    packages=["squared_relu"],
    ext_modules=[CppExtension("squared_relu._C", ["squared_relu/squared_relu.cpp"])],
    # _C.so, which registers its ops as it is loaded, is no module of Python.
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
