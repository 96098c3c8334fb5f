"""Settings of image processors and pictures for them; used by make_preprocessing.py and the tests.

Sizes are small, so that the golden file is.
"""

DINO = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SIDE = {"height": 40, "width": 40}

# name -> (whose processor, what its preprocessor_config.json says, how the photograph is changed)
CASES = {
    "clip": ("CLIP", {"size": {"shortest_edge": 40}, "crop_size": SIDE}, "whole"),
    "clip_wide": ("CLIP", {"size": {"shortest_edge": 33}, "crop_size": SIDE}, "wide"),
    "clip_odd_crop": (
        "CLIP",
        {"size": {"shortest_edge": 40}, "crop_size": {"height": 35, "width": 51}},
        "whole",
    ),
    "clip_no_crop": ("CLIP", {"size": {"shortest_edge": 30}, "do_center_crop": False}, "wide"),
    "vit": ("ViT", {"size": SIDE}, "whole"),
    "siglip": ("Siglip", {"size": SIDE}, "wide"),
    "siglip_bilinear": ("Siglip", {"size": {"height": 30, "width": 50}, "resample": 2}, "whole"),
    "dinov2": ("Bit", {"size": {"shortest_edge": 46}, "crop_size": SIDE} | DINO, "whole"),
    "up": ("Bit", {"size": {"shortest_edge": 64}, "crop_size": SIDE} | DINO, "tiny"),
    "transparent": ("CLIP", {"size": {"shortest_edge": 40}, "crop_size": SIDE}, "transparent"),
    "grey": ("CLIP", {"size": {"shortest_edge": 40}, "crop_size": SIDE}, "grey"),
    "palette": ("Siglip", {"size": SIDE}, "palette"),
    "unscaled": (
        "CLIP",
        {"size": SIDE, "do_center_crop": False, "do_rescale": False, "do_normalize": False},
        "whole",
    ),
}


def picture(photo, change):
    """The photograph as a PIL.Image of the mode and size that `change` says."""
    if change == "wide":
        return photo.crop((10, 60, 190, 141))
    if change == "tiny":
        return photo.resize((21, 17), 0)
    if change == "transparent":
        photo = photo.convert("RGBA")
        photo.putalpha(photo.getchannel("R"))
        return photo
    if change == "grey":
        return photo.convert("L")
    if change == "palette":
        return photo.quantize(32, method=2)
    return photo
