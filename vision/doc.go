// Package vision turns photographs into tensors, as torchvision does. It decodes, crops, resizes, mirrors,
// changes colours and normalizes. It writes the result straight into the memory of a sample's batch.
//
// Make a [Pipeline] once, from transforms with torchvision's names and defaults:
//
//	pipeline, err := vision.New([]vision.Transform{
//		vision.RandomResizedCrop{Size: vision.Square(224)},
//		vision.RandomHorizontalFlip{P: 0.5},
//		vision.ImageNetNormalize,
//	})
//
// [Pipeline.Load] then decodes the bytes of a picture from any source and fills a field of a sample.
// [OpenFolder] makes a dataset of a folder of pictures in which each subfolder is a class.
//
// # Several pictures of a sample
//
// [Pipeline.Load] makes new random choices at each call. Some samples have several pictures that must be
// cropped alike, such as a picture and its mask, the frames of a clip, or a stereo pair. Load these
// pictures with one [Choices]. In torchvision's transforms.v2, you would pass a tuple. Choices transforms
// boxes and points too:
//
//	masks, err := pipeline.Masks(nwt.Uint8, 255)   // nearest pixels, no colour transforms; 255 outside of the picture
//	…
//	choices, err := pipeline.Choose(dst, 0, photo) // in Load
//	…
//	err = choices.Load(masks, 1, mask)
//	box, share := choices.Box(vision.Box{left, top, right, bottom})
//
// [Pipeline.Companion] makes a pipeline for pictures with another element type, or with other colour
// transforms. [LoadCrops] decodes one picture once, and makes several random crops of it.
//
// # What is fast about it
//
// All crops, resizes and flips are done in one resampling, which reads only the needed part of the picture.
// A JPEG file is decoded only down to the crop's last row. If the file is baseline, only the blocks in the
// crop become pixels. The planes of a JPEG file are resampled before their colours are converted. On
// amd64 CPUs with AVX2, three steps run in assembly: the inverse cosine transforms, resampling, and
// conversion to float32 or bytes. Each worker keeps its decoders and buffers, so loading a JPEG file
// allocates nothing, unless the file has unusual colours or is huge.
//
// # What is remembered of JPEG files
//
// To find the codes of a block, a decoder must read all codes before them. So a pipeline remembers some
// places in the codes of each baseline JPEG file of 4 kB to 32 MB. It remembers one place for every 16 rows
// of pixels and, in wide pictures, for every 512 columns. Later crops of the same file start decoding at
// the nearest such place. This changes neither pixels nor errors.
//
// A file is identified by a hash of all its bytes, so a file that changes is a new file. A photograph of
// 500 × 375 takes 224 bytes, and one of 3000 × 2000 takes 6 kB. The process takes at most 256 MB for all
// files, enough for 1.2 million photographs of 500 × 375. Beyond that, it remembers no more files. [WithRowMemory]
// changes the bound. The memory isn't in the Go heap, and is freed when the pipeline is no longer in use.
// For a [Folder], it is counted in nwt.Stats.DatasetBytes.
//
// # Large pictures
//
// If a crop of a JPEG file is at least four times as wide and as high as the result, the file is decoded at
// half its size. If it is at least eight times as wide and as high, the file is decoded at a quarter of its
// size. Each side of the crop then still has at least twice as many pixels as the result, also in the
// chroma planes. Only the finest detail is lost; resizing would average it away too.
//
// For 72 crops of photographs of 3000 × 2000, the results were compared with full decoding. On average they
// differ by 0.3 of 255, in the worst crop by 0.8, and in a single value by at most 14. The results differ
// from Pillow's by 0.48 on average; with full decoding they differ by 0.40.
//
// Masks and the pictures of [LoadCrops] are always decoded at full size.
//
// # The same pixels everywhere
//
// The pixels of a result depend only on the file, the transforms and the sample's random numbers. All bits
// are the same with AVX2 and without, and on every CPU that Go compiles for.
//
// # What decodes
//
// This package has its own decoder for JPEG files, baseline and progressive, with any colours. The levels of
// each component are exactly the same as in libjpeg. Lossless JPEG files, and files with arithmetic coding,
// are errors.
//
// A JPEG file has no checksum for its pixels. Damage to their codes is noticed in three cases: a code
// becomes invalid, the codes end before the picture does, or a restart marker isn't where it must be. In a
// test, 8 bytes of the codes of a photograph of 500 × 375 were overwritten before each of 2 000 random
// crops. Of these crops, 109 were errors. The others loaded, with wrong pixels if the damage was in the
// crop.
//
// A JPEG file is complete if it has the codes of all its pixels. If it has several scans, they must have
// all bits of all coefficients. Bytes between its segments, before a restart marker or after the last row
// are skipped, as in Pillow and torchvision. If the end of a file is missing, every crop of the file is an
// error.
//
// PNG, PPM, PGM, GIF, WebP, BMP and TIFF are decoded in Go. Other formats are decoded if the program has registered
// them with [image.RegisterFormat]. If a PNG file isn't interlaced, only the rows down to the crop's last
// row are unpacked. But the end of the file and the checksums of all its chunks are always checked. So if a
// PNG file is damaged or incomplete, every crop is an error. TIFF files are turned as their orientation
// says, as in Pillow. Pillow loads some kinds of files that this package doesn't: see docs/photographs.md.
//
// Of an animation, the first picture is used. If this picture doesn't fill the file's canvas, the rest is
// black. Transparent pixels of a GIF file are black too.
//
// Grey pictures of 16 bits keep all levels, as in torchvision's to_dtype: floats get level / 65535, and
// Uint16 gets the level. In three cases only the upper eight bits are used: for Uint8 fields, after
// transforms that change colours, and for colour pictures of 16 bits. Pillow makes every grey above 255
// white.
//
// # Pictures that take too long
//
// A picture may take seconds; a malicious one, with 64 scans, takes half a minute. So loading a picture
// ends soon after its context ends: after a row of blocks, a row of pixels, or some kilobytes of the file.
// The error wraps the context's cause. The context is that of the dataset's Load call; the dataset needn't
// pass it on. The context ends if the program leaves the epoch, or if [nwt.WithTimeout] gives the call up.
//
// Three things can't be stopped. The first is a read from a file system that doesn't answer. The second is
// a decoder that the program has registered, once this decoder has read the whole file. The third is the
// decoder of WebP, which reads the whole file before it begins. For pictures of 89 megapixels on an AMD
// EPYC, it took at most this CPU time: 13 s for a damaged lossy file, 3.2 s for a good lossy file, and
// 1.6 s for a lossless file smaller than 4 kB. A larger lossless file took some milliseconds.
//
// # What is random
//
// All random numbers come from [nwt.Sample.Rand], so the contents of a batch don't depend on the number of
// workers.
package vision
