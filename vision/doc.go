// Package vision turns photographs into tensors, as torchvision does: it decodes, crops, resizes,
// mirrors, changes colours and normalizes. It writes the result straight into a sample's place in its
// batch.
//
// Make a [Pipeline] once, from transforms with torchvision's names and defaults:
//
//	pipeline, err := vision.New([]vision.Transform{
//		vision.RandomResizedCrop{Size: vision.Square(224)},
//		vision.RandomHorizontalFlip{P: 0.5},
//		vision.ImageNetNormalize,
//	})
//
// [Pipeline.Load] then decodes the bytes of a picture, which may come from anywhere, and fills a field
// of a sample. [OpenFolder] makes a dataset of a folder of pictures in which each subfolder is a class.
//
// # Several pictures of a sample
//
// [Pipeline.Load] makes new random choices at each call. To crop several pictures alike, such as a
// picture and its mask, the frames of a clip, or a stereo pair, load them with one [Choices]. In
// torchvision's transforms.v2, a tuple is passed for this. Choices handles boxes and points too:
//
//	masks, err := pipeline.Masks(nwt.Uint8, 255)   // nearest pixels, no colours; 255 outside of the picture
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
// All crops, resizes and flips are done in one resampling. It reads only the part of the picture that is
// needed. A JPEG file is decoded only down to the crop's last row. Of a baseline file, only the blocks
// in the crop become pixels. JPEG planes are resampled before colours are converted. On amd64 CPUs with
// AVX2, the inverse cosine transforms, resampling and conversion to float32 or bytes are in assembly.
// Each worker keeps its decoders and buffers, so that a JPEG file costs no allocation, unless it has
// unusual colours or is huge.
//
// # What is remembered of JPEG files
//
// To find the codes of a block, a decoder must read all codes before them. So a pipeline remembers
// some places in the codes of each baseline JPEG file of 4 kB to 32 MB: one for every 16 rows of pixels
// and, in wide pictures, every 512 columns. Later crops of the same file begin there instead of reading
// what lies above them and beside them. What is remembered changes neither pixels nor errors.
//
// A file is known by a hash of all its bytes, so a file that changes is another file. A photograph of 500
// × 375 takes 224 bytes, one of 3000 × 2000 takes 6 kB. The process takes at most 256 MB for that, enough
// for 1.2 million photographs of 500 × 375; then it remembers no more. [WithRowMemory] changes the bound.
// The memory isn't in the Go heap; it is freed once nobody uses the pipeline any more. For a [Folder], it
// is counted in nwt.Stats.DatasetBytes.
//
// # Large pictures
//
// If a crop of a JPEG file is at least four times as wide and as high as the result, the file is decoded at
// half its size; if it is eight times, at a quarter. Each side of the crop then still has at least twice as
// many pixels as the result, in the chroma planes too. They are resized as always. The finest detail, which
// resizing would average away, isn't computed. For 72 crops of photographs of 3000 × 2000, the results
// differ from those of full decoding by 0.3 of 255 on average, by 0.8 for the worst crop, and by at
// most 14 for a single value. From Pillow's results they differ by 0.48 on average; with full
// decoding, by 0.40. [WithoutScaling] decodes at full size. Masks and the pictures of [LoadCrops] are
// always decoded at full size.
//
// # The same pixels everywhere
//
// The pixels of a result depend only on the file, the transforms and the sample's random numbers: all bits
// are the same with AVX2 and without, and on every CPU that Go compiles for.
//
// # What decodes
//
// This package decodes JPEG files itself, baseline and progressive, with any colours. The levels of each
// component are exactly libjpeg's. Lossless JPEG files, and files with arithmetic coding, are errors.
//
// Damage to the codes of a JPEG file's pixels is noticed only if a code becomes invalid, if the codes
// end before the picture does, or if a restart marker isn't where it must be. In a test, 8 bytes of the
// codes of a photograph of 500 × 375 were overwritten before each of 2 000 random crops: 109 crops were
// errors. The others loaded, with wrong pixels if the damage was in the crop.
//
// A JPEG file is whole if it has the codes of all its pixels; a file of several scans must have all bits
// of all coefficients. Bytes between its segments, before a restart marker or after the last row are
// skipped, as in Pillow and torchvision. A file whose end is missing is an error for every crop.
//
// PNG, GIF, WebP, BMP and TIFF are decoded in Go, and so are other formats that the program has
// registered with [image.RegisterFormat]. If a PNG file isn't interlaced, only the rows down to the
// crop's last row are unpacked. But the end of the file and the checksums of all chunks are checked, so a
// file that is damaged or incomplete is an error for every crop. TIFF files are turned as their
// orientation says, as in Pillow. docs/photographs.md lists the kinds of files that Pillow loads and this
// package doesn't.
//
// Of an animation, the first picture is used. If this picture doesn't fill the file's canvas, the rest
// is black. In a GIF file, the rest has the transparent colour or, if there is none, the first colour of
// the palette, as in Pillow. If the picture extends beyond a GIF file's canvas, the canvas grows.
//
// 16-bit grey pictures keep all levels, as in torchvision's to_dtype: floats get level / 65535, Uint16
// gets the level. Only the upper eight bits are used in three cases: for Uint8 fields, after transforms
// that change colours, and for 16-bit colours. Pillow makes every grey above 255 white.
//
// # When nobody waits any more
//
// A picture may take seconds; a malicious one, with 64 scans, takes half a minute. So loading a picture
// ends soon after its context ends: after a row of blocks, a row of pixels, or some kilobytes of the
// file. The error wraps the context's cause. The context is that of the dataset's Load call that loads
// the sample; the dataset needn't pass it on. The context ends if the program leaves the epoch, or if
// [nwt.WithTimeout] gives the call up. The decoder of WebP can't be stopped, since it reads the whole
// file before it begins. With pictures of 89 megapixels on an AMD EPYC, it took at most this CPU time:
// 13 s for a bad lossy file, 3.2 s for a good lossy file, 1.6 s for a lossless file smaller than 4 kB,
// and some milliseconds for a larger lossless file.
//
// Two more things can't be stopped: a read from a file system that doesn't answer, and a decoder that the
// program has registered, once this decoder has read the whole file.
//
// # What is random
//
// All random numbers come from [nwt.Sample.Rand], so the contents of a batch don't depend on the number
// of workers.
package vision
