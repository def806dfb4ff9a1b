//! The functions of CUDA that the simulated device cannot do.
//!
//! A program that looks up all functions at its start finds them, as it does in a driver. A call reads no
//! argument, fails, and says once on the standard error which function is missing. The list has all other
//! functions that the headers of CUDA 13.0 declare for the driver.
#![allow(non_snake_case, reason = "the functions have CUDA's names")]

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::io::Write;

use millpond_core::DriverError;
use parking_lot::Mutex;

use crate::calls::{Api, Driving, Runtime};
use crate::error::refusal;
use crate::table::Symbol;

fn refuse(name: &'static str) -> c_int {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().insert(name) {
        // A program may have closed its standard error.
        let text =
            format!("millpond: a simulated device has no {name}; the call returns CUDA_ERROR_NOT_SUPPORTED");
        drop(writeln!(std::io::stderr(), "{text}"));
    }
    let refused = Err(refusal(DriverError::NOT_SUPPORTED));
    if name.starts_with("cuda") { Runtime::code(refused) } else { Driving::code(refused) }
}

macro_rules! unsupported {
    ($($name:ident $(since $since:literal)?),+ $(,)?) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            refuse(stringify!($name))
        })+

        pub(crate) const SYMBOLS: &[Symbol] = &[$(Symbol {
            name: stringify!($name),
            since: 0 $(+ $since)?,
            address: || $name as *const c_void,
        },)+];
    };
}

// A line of `cudaTypedefs.h` says since when CUDA has a function that it has in several versions.
unsupported! {
    cuArray3DCreate since 2000, cuArray3DCreate_v2 since 3020, cuArray3DGetDescriptor since 2000,
    cuArray3DGetDescriptor_v2 since 3020, cuArrayCreate since 2000, cuArrayCreate_v2 since 3020,
    cuArrayDestroy, cuArrayGetDescriptor since 2000, cuArrayGetDescriptor_v2 since 3020,
    cuArrayGetMemoryRequirements, cuArrayGetPlane, cuArrayGetSparseProperties, cuCheckpointProcessCheckpoint,
    cuCheckpointProcessGetRestoreThreadId, cuCheckpointProcessGetState, cuCheckpointProcessLock,
    cuCheckpointProcessRestore, cuCheckpointProcessUnlock, cuCoredumpGetAttribute,
    cuCoredumpGetAttributeGlobal, cuCoredumpSetAttribute, cuCoredumpSetAttributeGlobal, cuCtxAttach,
    cuCtxDetach, cuCtxDisablePeerAccess, cuCtxEnablePeerAccess, cuCtxFromGreenCtx, cuCtxGetCacheConfig,
    cuCtxGetDevResource, cuCtxGetExecAffinity, cuCtxGetLimit, cuCtxGetSharedMemConfig, cuCtxRecordEvent,
    cuCtxResetPersistingL2Cache, cuCtxSetCacheConfig, cuCtxSetFlags, cuCtxSetLimit, cuCtxSetSharedMemConfig,
    cuCtxWaitEvent, cuDestroyExternalMemory, cuDestroyExternalSemaphore, cuDevResourceGenerateDesc,
    cuDevSmResourceSplitByCount, cuDeviceComputeCapability, cuDeviceGetDevResource,
    cuDeviceGetExecAffinitySupport, cuDeviceGetHostAtomicCapabilities, cuDeviceGetLuid,
    cuDeviceGetNvSciSyncAttributes, cuDeviceGetP2PAtomicCapabilities, cuDeviceGetP2PAttribute,
    cuDeviceGetProperties, cuDeviceGetTexture1DLinearMaxWidth, cuDeviceRegisterAsyncNotification,
    cuDeviceUnregisterAsyncNotification, cuEventElapsedTime since 2000, cuEventElapsedTime_v2 since 12080,
    cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedMipmappedArray, cuFlushGPUDirectRDMAWrites,
    cuFuncGetAttribute, cuFuncGetModule, cuFuncGetName, cuFuncGetParamInfo, cuFuncIsLoaded, cuFuncLoad,
    cuFuncSetAttribute, cuFuncSetBlockShape, cuFuncSetCacheConfig, cuFuncSetSharedMemConfig,
    cuFuncSetSharedSize, cuGetExportTable, cuGraphAddBatchMemOpNode, cuGraphAddChildGraphNode,
    cuGraphAddDependencies since 10000, cuGraphAddDependencies_v2 since 12030, cuGraphAddEmptyNode,
    cuGraphAddEventRecordNode, cuGraphAddEventWaitNode, cuGraphAddExternalSemaphoresSignalNode,
    cuGraphAddExternalSemaphoresWaitNode, cuGraphAddHostNode, cuGraphAddKernelNode since 10000,
    cuGraphAddKernelNode_v2 since 12000, cuGraphAddMemAllocNode, cuGraphAddMemFreeNode, cuGraphAddMemcpyNode,
    cuGraphAddMemsetNode, cuGraphAddNode since 12020, cuGraphAddNode_v2 since 12030,
    cuGraphBatchMemOpNodeGetParams, cuGraphBatchMemOpNodeSetParams, cuGraphChildGraphNodeGetGraph,
    cuGraphClone, cuGraphConditionalHandleCreate, cuGraphCreate, cuGraphDebugDotPrint, cuGraphDestroyNode,
    cuGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeSetEvent, cuGraphEventWaitNodeGetEvent,
    cuGraphEventWaitNodeSetEvent, cuGraphExecBatchMemOpNodeSetParams, cuGraphExecChildGraphNodeSetParams,
    cuGraphExecDestroy, cuGraphExecEventRecordNodeSetEvent, cuGraphExecEventWaitNodeSetEvent,
    cuGraphExecExternalSemaphoresSignalNodeSetParams, cuGraphExecExternalSemaphoresWaitNodeSetParams,
    cuGraphExecGetFlags, cuGraphExecHostNodeSetParams, cuGraphExecKernelNodeSetParams since 10010,
    cuGraphExecKernelNodeSetParams_v2 since 12000, cuGraphExecMemcpyNodeSetParams,
    cuGraphExecMemsetNodeSetParams, cuGraphExecNodeSetParams, cuGraphExecUpdate since 10020,
    cuGraphExecUpdate_v2 since 12000, cuGraphExternalSemaphoresSignalNodeGetParams,
    cuGraphExternalSemaphoresSignalNodeSetParams, cuGraphExternalSemaphoresWaitNodeGetParams,
    cuGraphExternalSemaphoresWaitNodeSetParams, cuGraphGetEdges since 10000, cuGraphGetEdges_v2 since 12030,
    cuGraphGetRootNodes, cuGraphHostNodeGetParams, cuGraphHostNodeSetParams, cuGraphInstantiate since 10000,
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, cuGraphInstantiate_v2 since 11000,
    cuGraphKernelNodeCopyAttributes, cuGraphKernelNodeGetAttribute, cuGraphKernelNodeGetParams since 10000,
    cuGraphKernelNodeGetParams_v2 since 12000, cuGraphKernelNodeSetAttribute,
    cuGraphKernelNodeSetParams since 10000, cuGraphKernelNodeSetParams_v2 since 12000, cuGraphLaunch,
    cuGraphLaunch_ptsz, cuGraphMemAllocNodeGetParams, cuGraphMemFreeNodeGetParams, cuGraphMemcpyNodeGetParams,
    cuGraphMemcpyNodeSetParams, cuGraphMemsetNodeGetParams, cuGraphMemsetNodeSetParams,
    cuGraphNodeFindInClone, cuGraphNodeGetDependencies since 10000, cuGraphNodeGetDependencies_v2 since 12030,
    cuGraphNodeGetDependentNodes since 10000, cuGraphNodeGetDependentNodes_v2 since 12030,
    cuGraphNodeGetEnabled, cuGraphNodeSetEnabled, cuGraphNodeSetParams, cuGraphReleaseUserObject,
    cuGraphRemoveDependencies since 10000, cuGraphRemoveDependencies_v2 since 12030, cuGraphRetainUserObject,
    cuGraphUpload, cuGraphUpload_ptsz, cuGraphicsMapResources since 3000,
    cuGraphicsMapResources_ptsz since 3000, cuGraphicsResourceGetMappedMipmappedArray,
    cuGraphicsResourceGetMappedPointer since 3000, cuGraphicsResourceGetMappedPointer_v2 since 3020,
    cuGraphicsResourceSetMapFlags since 3000, cuGraphicsResourceSetMapFlags_v2 since 6050,
    cuGraphicsSubResourceGetMappedArray, cuGraphicsUnmapResources since 3000,
    cuGraphicsUnmapResources_ptsz since 3000, cuGraphicsUnregisterResource, cuGreenCtxCreate,
    cuGreenCtxDestroy, cuGreenCtxGetDevResource, cuGreenCtxGetId, cuGreenCtxRecordEvent,
    cuGreenCtxStreamCreate, cuGreenCtxWaitEvent, cuImportExternalMemory, cuImportExternalSemaphore,
    cuIpcGetEventHandle, cuIpcOpenEventHandle, cuKernelGetAttribute, cuKernelGetFunction, cuKernelGetLibrary,
    cuKernelGetName, cuKernelGetParamInfo, cuKernelSetAttribute, cuKernelSetCacheConfig, cuLaunch,
    cuLaunchCooperativeKernel, cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernel_ptsz,
    cuLaunchGrid, cuLaunchGridAsync, cuLaunchKernel since 4000, cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
    cuLaunchKernel_ptsz since 4000, cuLibraryEnumerateKernels, cuLibraryGetGlobal, cuLibraryGetKernel,
    cuLibraryGetKernelCount, cuLibraryGetManaged, cuLibraryGetModule, cuLibraryGetUnifiedFunction,
    cuLibraryLoadData, cuLibraryLoadFromFile, cuLibraryUnload, cuLinkAddData since 5050,
    cuLinkAddData_v2 since 6050, cuLinkAddFile since 5050, cuLinkAddFile_v2 since 6050, cuLinkComplete,
    cuLinkCreate since 5050, cuLinkCreate_v2 since 6050, cuLinkDestroy, cuLogsCurrent, cuLogsDumpToFile,
    cuLogsDumpToMemory, cuLogsRegisterCallback, cuLogsUnregisterCallback, cuMemBatchDecompressAsync,
    cuMemBatchDecompressAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz,
    cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz, cuMemGetAccess,
    cuMemGetAllocationPropertiesFromHandle, cuMemGetHandleForAddressRange, cuMemHostGetFlags,
    cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz, cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz,
    cuMemRangeGetAttribute, cuMemRangeGetAttributes, cuMemRetainAllocationHandle, cuMemcpy2D since 2000,
    cuMemcpy2DAsync since 2000, cuMemcpy2DAsync_v2 since 3020, cuMemcpy2DAsync_v2_ptsz since 3020,
    cuMemcpy2DUnaligned since 2000, cuMemcpy2DUnaligned_v2 since 3020, cuMemcpy2DUnaligned_v2_ptds since 3020,
    cuMemcpy2D_v2 since 3020, cuMemcpy2D_v2_ptds since 3020, cuMemcpy3D since 2000,
    cuMemcpy3DAsync since 2000, cuMemcpy3DAsync_v2 since 3020, cuMemcpy3DAsync_v2_ptsz since 3020,
    cuMemcpy3DBatchAsync since 12080, cuMemcpy3DBatchAsync_ptsz since 12080,
    cuMemcpy3DBatchAsync_v2 since 13000, cuMemcpy3DBatchAsync_v2_ptsz since 13000, cuMemcpy3DPeer since 4000,
    cuMemcpy3DPeerAsync since 4000, cuMemcpy3DPeerAsync_ptsz since 4000, cuMemcpy3DPeer_ptds since 4000,
    cuMemcpy3D_v2 since 3020, cuMemcpy3D_v2_ptds since 3020, cuMemcpyAtoA since 2000,
    cuMemcpyAtoA_v2 since 3020, cuMemcpyAtoA_v2_ptds since 3020, cuMemcpyAtoD since 2000,
    cuMemcpyAtoD_v2 since 3020, cuMemcpyAtoD_v2_ptds since 3020, cuMemcpyAtoH since 2000,
    cuMemcpyAtoHAsync since 2000, cuMemcpyAtoHAsync_v2 since 3020, cuMemcpyAtoHAsync_v2_ptsz since 3020,
    cuMemcpyAtoH_v2 since 3020, cuMemcpyAtoH_v2_ptds since 3020, cuMemcpyBatchAsync since 12080,
    cuMemcpyBatchAsync_ptsz since 12080, cuMemcpyBatchAsync_v2 since 13000,
    cuMemcpyBatchAsync_v2_ptsz since 13000, cuMemcpyDtoA since 2000, cuMemcpyDtoA_v2 since 3020,
    cuMemcpyDtoA_v2_ptds since 3020, cuMemcpyHtoA since 2000, cuMemcpyHtoAAsync since 2000,
    cuMemcpyHtoAAsync_v2 since 3020, cuMemcpyHtoAAsync_v2_ptsz since 3020, cuMemcpyHtoA_v2 since 3020,
    cuMemcpyHtoA_v2_ptds since 3020, cuMemcpyPeer since 4000, cuMemcpyPeer_ptds since 4000,
    cuMemsetD2D16 since 2000, cuMemsetD2D16Async since 3020, cuMemsetD2D16Async_ptsz since 3020,
    cuMemsetD2D16_v2 since 3020, cuMemsetD2D16_v2_ptds since 3020, cuMemsetD2D32 since 2000,
    cuMemsetD2D32Async since 3020, cuMemsetD2D32Async_ptsz since 3020, cuMemsetD2D32_v2 since 3020,
    cuMemsetD2D32_v2_ptds since 3020, cuMemsetD2D8Async since 3020, cuMemsetD2D8Async_ptsz since 3020,
    cuMipmappedArrayCreate, cuMipmappedArrayDestroy, cuMipmappedArrayGetLevel,
    cuMipmappedArrayGetMemoryRequirements, cuMipmappedArrayGetSparseProperties, cuModuleEnumerateFunctions,
    cuModuleGetFunction, cuModuleGetFunctionCount, cuModuleGetGlobal since 2000,
    cuModuleGetGlobal_v2 since 3020, cuModuleGetLoadingMode, cuModuleGetSurfRef, cuModuleGetTexRef,
    cuModuleLoad, cuModuleLoadData, cuModuleLoadDataEx, cuModuleLoadFatBinary, cuModuleUnload,
    cuMulticastAddDevice, cuMulticastBindAddr since 12010, cuMulticastBindMem since 12010, cuMulticastCreate,
    cuMulticastGetGranularity, cuMulticastUnbind, cuOccupancyAvailableDynamicSMemPerBlock,
    cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    cuOccupancyMaxActiveClusters, cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSizeWithFlags,
    cuOccupancyMaxPotentialClusterSize, cuParamSetSize, cuParamSetTexRef, cuParamSetf, cuParamSeti,
    cuParamSetv, cuPointerSetAttribute, cuProfilerInitialize, cuProfilerStart, cuProfilerStop,
    cuSignalExternalSemaphoresAsync, cuSignalExternalSemaphoresAsync_ptsz, cuStreamAddCallback since 5000,
    cuStreamAddCallback_ptsz since 5000, cuStreamAttachMemAsync since 6000,
    cuStreamAttachMemAsync_ptsz since 6000, cuStreamBatchMemOp since 8000, cuStreamBatchMemOp_ptsz since 8000,
    cuStreamBatchMemOp_v2 since 11070, cuStreamBatchMemOp_v2_ptsz since 11070, cuStreamBeginCaptureToGraph,
    cuStreamBeginCaptureToGraph_ptsz, cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz,
    cuStreamGetAttribute, cuStreamGetAttribute_ptsz, cuStreamGetDevice, cuStreamGetDevice_ptsz,
    cuStreamGetFlags since 5050, cuStreamGetFlags_ptsz since 5050, cuStreamGetGreenCtx,
    cuStreamGetPriority since 5050, cuStreamGetPriority_ptsz since 5050, cuStreamSetAttribute,
    cuStreamSetAttribute_ptsz, cuStreamUpdateCaptureDependencies since 11030,
    cuStreamUpdateCaptureDependencies_ptsz since 11030, cuStreamUpdateCaptureDependencies_v2 since 12030,
    cuStreamUpdateCaptureDependencies_v2_ptsz since 12030, cuStreamWaitValue32 since 8000,
    cuStreamWaitValue32_ptsz since 8000, cuStreamWaitValue32_v2 since 11070,
    cuStreamWaitValue32_v2_ptsz since 11070, cuStreamWaitValue64 since 9000,
    cuStreamWaitValue64_ptsz since 9000, cuStreamWaitValue64_v2 since 11070,
    cuStreamWaitValue64_v2_ptsz since 11070, cuStreamWriteValue32 since 8000,
    cuStreamWriteValue32_ptsz since 8000, cuStreamWriteValue32_v2 since 11070,
    cuStreamWriteValue32_v2_ptsz since 11070, cuStreamWriteValue64 since 9000,
    cuStreamWriteValue64_ptsz since 9000, cuStreamWriteValue64_v2 since 11070,
    cuStreamWriteValue64_v2_ptsz since 11070, cuSurfObjectCreate, cuSurfObjectDestroy,
    cuSurfObjectGetResourceDesc, cuSurfRefGetArray, cuSurfRefSetArray, cuTensorMapEncodeIm2col,
    cuTensorMapEncodeIm2colWide, cuTensorMapEncodeTiled, cuTensorMapReplaceAddress, cuTexObjectCreate,
    cuTexObjectDestroy, cuTexObjectGetResourceDesc, cuTexObjectGetResourceViewDesc, cuTexObjectGetTextureDesc,
    cuTexRefCreate, cuTexRefDestroy, cuTexRefGetAddress since 2000, cuTexRefGetAddressMode,
    cuTexRefGetAddress_v2 since 3020, cuTexRefGetArray, cuTexRefGetBorderColor, cuTexRefGetFilterMode,
    cuTexRefGetFlags, cuTexRefGetFormat, cuTexRefGetMaxAnisotropy, cuTexRefGetMipmapFilterMode,
    cuTexRefGetMipmapLevelBias, cuTexRefGetMipmapLevelClamp, cuTexRefGetMipmappedArray,
    cuTexRefSetAddress since 2000, cuTexRefSetAddress2D since 2020, cuTexRefSetAddress2D_v2 since 3020,
    cuTexRefSetAddress2D_v3 since 4010, cuTexRefSetAddressMode, cuTexRefSetAddress_v2 since 3020,
    cuTexRefSetArray, cuTexRefSetBorderColor, cuTexRefSetFilterMode, cuTexRefSetFlags, cuTexRefSetFormat,
    cuTexRefSetMaxAnisotropy, cuTexRefSetMipmapFilterMode, cuTexRefSetMipmapLevelBias,
    cuTexRefSetMipmapLevelClamp, cuTexRefSetMipmappedArray, cuUserObjectCreate, cuUserObjectRelease,
    cuUserObjectRetain, cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync_ptsz,
    cudaEventElapsedTime, cudaGraphNodeGetDependencies,
}
