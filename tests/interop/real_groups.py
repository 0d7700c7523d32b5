"""Groups of real files that others wrote: by name, where each lies in the folder."""

from __future__ import annotations

from pathlib import Path

import virtualzarr as vz
from virtualzarr.hierarchy.group import Group

_JHDF = "hdf5/jamesmudd-jhdf/resources/hdf5"
_PLUGINS = "hdf5/HDFGroup-hdf5_plugins/example/testfiles"
_CFGRIB = "grib/ecmwf-cfgrib/tests/sample-data"
_ASTROPY = "fits/astropy-astropy/tests/data"
_IMAGES = "tiff/image-rs-image-tiff"

FILES = {
    "hdf5_compressed": f"{_JHDF}/test_compressed_chunked_datasets_latest.hdf5",
    "hdf5_compounds": f"{_JHDF}/compound_datasets_latest.hdf5",
    "hdf5_bitfields": f"{_JHDF}/bitfield_datasets.hdf5",
    "hdf5_opaque": f"{_JHDF}/opaque_datasets_latest.hdf5",
    "hdf5_texts": f"{_JHDF}/test_string_datasets_earliest.hdf5",
    "hdf5_empty": f"{_JHDF}/test_scalar_empty_datasets_earliest.hdf5",
    "hdf5_paged": f"{_JHDF}/fixed_array_paged_datasets.hdf5",
    "hdf5_special_floats": f"{_JHDF}/float_special_values_latest.hdf5",
    "hdf5_fletcher": f"{_JHDF}/fletcher32_datasets_latest.hdf5",
    "hdf5_blosc": f"{_PLUGINS}/h5ex_d_blosc.h5",
    "hdf5_bitshuffle": f"{_PLUGINS}/h5ex_d_bshuf.h5",
    "hdf5_lz4": f"{_PLUGINS}/h5ex_d_lz4.h5",
    "hdf5_zfp": f"{_PLUGINS}/h5ex_d_zfp.h5",
    "hdf5_scaleoffset": "hdf5/Apollo3zehn-PureHDF/PureHDF.Tests/TestFiles/scaleoffset.h5",
    "hdf5_matlab": "hdf5/JuliaIO-MAT.jl/test/v7.3/struct_table_datetime.mat",
    "hdf5_virtual": "hdf5/hdf5/testfiles/vds/3_1_vds.h5",
    "hdf5_pytables": "hdf5/pytables/tables/tests/indexes_2_1.h5",
    "hdf5_gaps": "hdf5/pytables/tables/tests/nested-type-with-gaps.h5",
    "hdf5_s104": "hdf5/rouault-gdal/data/s104/multiple_feature_instance_groups.h5",
    "netcdf4_atomic": "hdf5/netcdf/dap4_test/nctestfiles/test_atomic_array.nc",
    "netcdf4_sequences": "hdf5/netcdf/dap4_test/nctestfiles/test_vlen7.nc",
    "netcdf4_cmip": "hdf5/ESMValGroup-ESMValTool/diag_scripts/data/tas_amon_2d_plev_lat_2.nc",
    "netcdf4_ukesm": "hdf5/NCAS-CMS-pyfive/tests/data/"
                     "noy_AERmonZ_UKESM1-0-LL_piControl_r1i1p1f2_gnz_200001-200012.nc",
    "netcdf4_linked": "hdf5/fsspec-kerchunk/tests/air_linked.nc",
    "netcdf3_records": "netcdf3/netcdf/netcdf-c-4.9.0/nctest/ref_nctest_64bit_offset.nc",
    "netcdf3_grid": "netcdf3/rouault-gdal/data/netcdf/trajectory.nc",
    "netcdf3_minc": "netcdf3/nipy-nibabel/tests/data/example_1.nc",
    "grib_cubes": f"{_CFGRIB}/regular_gg_ml.grib",
    "grib_scanning": f"{_CFGRIB}/scanning_mode_64.grib",
    "grib_harmonics": f"{_CFGRIB}/spherical_harmonics.grib",
    "grib_levels": f"{_CFGRIB}/soil-surface-level-mix.grib",
    "grib_steps": f"{_CFGRIB}/step_60m.grib",
    "grib_gfs": "grib/cogeotiff-rio-tiler/tests/fixtures/gfs.t06z.pgrb2.10p0.f010.grib2",
    "grib_bitmap": "grib/rouault-gdal/data/grib/two_bands_with_bitmap.grib2",
    "fits_images": f"{_ASTROPY}/test1.fits",
    "fits_scaled": f"{_ASTROPY}/fixed-1890.fits",
    "fits_table": f"{_ASTROPY}/stddata.fits",
    "fits_text": f"{_ASTROPY}/ascii.fits",
    "fits_rice": f"{_ASTROPY}/compressed_with_nan.fits",
    "fits_plio": f"{_ASTROPY}/m13_plio.fits",
    "fits_groups": f"{_ASTROPY}/random_groups.fits",
    "fits_sequences": f"{_ASTROPY}/variable_length_table.fits",
    "fits_cells": "fits/rouault-gdal/data/fits/binary_table.fits",
    "nifti": "nifti/nipy-nibabel/tests/data/standard.nii",
    "tiff_predictor3": f"{_IMAGES}/tests/images/predictor-3-gray-f32.tif",
    "tiff_bits": f"{_IMAGES}/images/seq/seq-1c-1b-miniswhite-71f6a21a.tiff",
    "tiff_planes": f"{_IMAGES}/images/seq/seq-3c-10b-planar-c82e8ab6.tiff",
    "tiff_lzw": f"{_IMAGES}/images/seq/seq-1c-8b-lzw-hpredict-20f3db0c.tiff",
    "tiff_half": f"{_IMAGES}/tests/images/random-fp16.tiff",
    "tiff_rgb_jpeg": "tiff/cgohlke-imagecodecs/data/tiff/rgb.tiled.jpeg.u1.tif",
    "tiff_lerc": "tiff/rouault-gdal/data/gtiff/rgbsmall_LERC_DEFLATE_tiled_separate.tif",
    "tiff_cog": "tiff/fsspec-kerchunk/tests/lcmap_tiny_cog_2019.tif",
    "tiff_series": "tiff/cgohlke-imagecodecs/data/tiff/gray.series.u1.tif",
}  # fmt: skip


def open_file(root: Path, name: str) -> Group:
    """Open a file as a group."""
    node = vz.open(root / FILES[name])
    return node if isinstance(node, Group) else Group({}, {"a": node})
